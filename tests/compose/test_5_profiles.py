"""The small mode, and the exporter beside it."""

import time

from tests.compose.project import MODEL, Project, run, wait


def test_the_small_mode_answers_and_the_exporter_shows_everybody(project: Project) -> None:
    project.down()
    before = time.monotonic()
    project.compose(
        "--env-file", "deploy/colocated.env", "up", "-d", "--wait", "--no-build",
        timeout_s=240.0,
    )  # fmt: skip
    project.compose("--profile", "observe", "up", "-d", "--no-deps", "--wait", "exporter")
    print(f"small mode in {time.monotonic() - before:.0f} s")
    assert project.containers("prefill") == project.containers("decode") == []
    with project.sdk() as client:
        reply = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
    assert reply.usage.completion_tokens >= 1
    exporter = project.containers("exporter")[0]
    page = 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9464/metrics").read())'

    def shown() -> bool:
        text = run("docker", "exec", exporter.id, "python", "-c", page)
        return all(
            f'service="{role}"' in text for role in ("gateway", "conductor", "colocated", "store")
        )

    wait(shown, 15.0, "all services on the exporter's page")
