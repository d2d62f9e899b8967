"""A first start, from nothing, with nothing else done."""

import asyncio
import os

import pytest

from tests.compose.listening import Observer
from tests.compose.project import ALARMING, MODEL, ONCE, Project, run, wait
from tests.compose.talking import STORY

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


def test_everything_is_healthy_and_no_log_has_an_error_or_a_warning(project: Project) -> None:
    assert project.healthy()
    assert {c.service for c in project.containers()} >= {"gateway", "store-b", *ONCE}
    alarming = [
        line
        for container in project.containers()
        for line in project.log(container).splitlines()
        if ALARMING.search(line)
    ]
    assert alarming == []


def test_no_container_runs_as_root_or_could_write_to_its_image(project: Project) -> None:
    for container in project.containers():
        user = container.config["User"].split(":")[0]
        assert user.isdigit(), container.name
        assert int(user) > 0, container.name
        assert container.host["ReadonlyRootfs"], container.name
        assert container.host["CapDrop"] == ["ALL"], container.name
        assert container.host["Memory"] > 0, container.name
        assert container.host["NanoCpus"] > 0, container.name
        if container.service not in ONCE:
            owners = run("docker", "top", container.id, "-eo", "pid,uid").split()[3::2]
            assert set(owners) == {user}, container.name


def test_a_chat_is_answered_and_its_second_turn_comes_from_the_cache(project: Project) -> None:
    with project.sdk() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        messages = [{"role": "user", "content": f"{STORY} What lay in it?"}]
        first = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=24, temperature=0
        )
        said = first.choices[0].message.content
        assert said
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": "And what else?"},
        ]
        second = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=24, temperature=0
        )
    assert second.usage.prompt_tokens_details.cached_tokens >= 64


def test_a_plain_subscriber_receives_audit_and_metrics_on_the_published_port(
    project: Project,
) -> None:
    roles = {"gateway", "conductor", "prefill", "decode", "store"}
    with Observer(project.nats_url) as seen, project.sdk() as client:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        wait(lambda: bool(seen.audits), 10.0, "an audit event")
        wait(lambda: roles <= {m.service for m in seen.metrics.values()}, 10.0, "all metrics")
    assert seen.audits[-1].outcome == "ok"
    assert seen.audits[-1].attempts[-1].prefill.startswith("prefill-")


def test_nobody_comes_in_without_a_password(project: Project) -> None:
    async def hello() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["NATS_PORT"]))
        await reader.readline()
        writer.write(b'CONNECT {"verbose": false}\r\nPING\r\n')
        said = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return said

    assert asyncio.run(hello()) == b"-ERR 'Authorization Violation'\r\n"


def test_kv_moves_through_shared_memory_within_a_host_and_by_tcp_between_hosts(
    project: Project,
) -> None:
    with Observer(project.nats_url) as seen:
        wait(
            lambda: {"prefill", "decode"} <= {m.service for m in seen.metrics.values()},
            10.0,
            "metrics of both kinds",
        )
        wait(lambda: seen.moved_bytes("prefill", "tcp") > 0, 10.0, "prefill to decode, by tcp")
        wait(lambda: seen.moved_bytes("prefill", "shm") > 0, 10.0, "prefill to store-a, shared")


@pytest.mark.parametrize(
    ("variable", "named"),
    [("MOONPOOL_NONSENSE=1", "MOONPOOL_NONSENSE"), ("MOONPOOL_LOG_LEVEL=loud", "loud")],
)
def test_an_unknown_or_bad_variable_stops_a_service_and_is_named(
    project: Project, variable: str, named: str
) -> None:
    said = project.compose("run", "--rm", "-T", "--no-deps", "-e", variable, "conductor", status=2)
    assert named in said


def test_the_configuration_is_clean_for_every_profile(project: Project) -> None:
    for profile in ("", "colocated", "gpu", "observe"):
        assert project.compose("--profile", profile, "config", "-q") == ""
