"""Each kind of service killed in turn, and a node cut off, while chats run."""

import pytest

from tests.compose.project import Project, run, wait
from tests.compose.talking import Talk

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.parametrize("service", ["prefill", "decode", "store-a", "conductor"])
def test_chats_go_on_when_one_is_killed_and_it_comes_back(project: Project, service: str) -> None:
    victim = project.containers(service)[0]
    with Talk(project) as talk:
        wait(lambda: talk.answers > 0, 60.0, "a first answer")
        project.crash(victim)
        before = talk.answers
        wait(lambda: talk.answers >= before + 4, 120.0, "answers after it")
        assert talk.errors == []
        after = next(c for c in project.containers(service) if c.id == victim.id)
        wait(lambda: project.containers(service)[0].state["Running"], 30.0, f"{service} runs again")
        assert after.pid != victim.pid
    assert talk.errors == []


def test_chats_go_on_while_a_node_is_cut_off_and_it_is_used_again_after(project: Project) -> None:
    project.wait_healthy()
    node, network = project.containers("store-b")[0], f"{project.name}_default"
    with Talk(project) as talk:
        wait(lambda: talk.answers > 0, 60.0, "a first answer")
        run("docker", "network", "disconnect", network, node.id)
        before = talk.answers
        wait(lambda: not project.healthy("store-b"), 60.0, "store-b says that it can't work")
        wait(lambda: talk.answers >= before + 3, 120.0, "answers without it")
        run("docker", "network", "connect", "--alias", "store-b", network, node.id)
        project.wait_healthy("store-b", deadline_s=60.0)
        before = talk.answers
        wait(lambda: talk.answers >= before + 2, 120.0, "answers with it")
    assert talk.errors == []


def test_everything_is_healthy_again(project: Project) -> None:
    project.wait_healthy()
    restarted = {
        container.service for container in project.containers() if json_restarts(container.id)
    }
    assert restarted == {"prefill", "decode", "store-a", "conductor"}


def json_restarts(container: str) -> int:
    return int(run("docker", "inspect", "-f", "{{.RestartCount}}", container))
