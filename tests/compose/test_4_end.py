"""Nothing is left."""

from tests.compose.project import Project, run


def test_a_stop_is_orderly_and_down_leaves_nothing(project: Project) -> None:
    project.compose("stop", "-t", "25", timeout_s=120.0)
    assert {c.name: c.state["ExitCode"] for c in project.containers() if c.state["ExitCode"]} == {}
    project.down()
    mine = f"--filter=label=com.docker.compose.project={project.name}"
    assert project.containers() == []
    assert run("docker", "volume", "ls", "-q", mine) == ""
    assert run("docker", "network", "ls", "-q", mine) == ""
