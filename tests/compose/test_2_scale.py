"""More instances, and fewer, while chats run."""

import pytest

from tests.compose.listening import Observer
from tests.compose.project import Project, run, wait
from tests.compose.talking import Talk

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


def scale(project: Project, prefill: int, decode: int) -> None:
    project.compose(
        "up", "-d", "--wait", "--no-recreate", "--no-build",
        "--scale", f"prefill={prefill}", "--scale", f"decode={decode}",
        timeout_s=240.0,
    )  # fmt: skip


def test_a_new_instance_is_used_and_a_removed_one_drains_first(project: Project) -> None:
    known = {container.id for container in project.containers("prefill")}
    scale(project, prefill=3, decode=2)
    added = [c for c in project.containers("prefill") if c.id not in known]
    assert len(added) == 1
    id = project.mesh_id(added[0])
    with Observer(project.nats_url) as seen:
        with Talk(project) as talk:
            wait(
                lambda: any(a.prefill == id for audit in seen.audits for a in audit.attempts),
                60.0,
                "the new prefill answers",
            )
            # The engine says stop, as it does when compose takes one away, and nobody notices.
            run("docker", "stop", "-t", "25", added[0].id)
            log = project.log(added[0])
        assert "stopping" in log
        assert "stopped" in log
    assert talk.errors == []
    assert talk.answers > 0
    assert all(audit.outcome == "ok" for audit in seen.audits)
    scale(project, prefill=2, decode=2)
    assert len(project.containers("prefill")) == 2
