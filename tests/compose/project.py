"""`docker compose` on our file, and the questions that tests ask about what it started."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
START_MAX_S = 420.0  # images built and everything healthy, on a busy machine
HEALTHY_MAX_S = 180.0
ALARMING = re.compile(
    r"level=(warning|error)|\[(WRN|ERR|FTL)\]|^[WEF]\d{4} |\b(warning|error)\b|Traceback",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class Container:
    id: str
    name: str
    service: str
    state: dict[str, Any]  # as `docker inspect` shows it
    config: dict[str, Any]
    host: dict[str, Any]

    @property
    def healthy(self) -> bool:
        return bool(self.state.get("Health", {}).get("Status") == "healthy")

    @property
    def pid(self) -> int:
        return int(self.state["Pid"])


class Project:
    """One deployment, named by COMPOSE_PROJECT_NAME."""

    def __init__(self) -> None:
        self.name = os.environ["COMPOSE_PROJECT_NAME"]
        self.started_in_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{os.environ['API_PORT']}/v1"

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{os.environ['NATS_PORT']}"

    def sdk(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="any", timeout=120.0, max_retries=4)

    # What is done to it

    def up(self, *arguments: str) -> None:
        """Returns once everything is healthy."""
        before = time.monotonic()
        self.compose("up", "-d", "--wait", "--build", *arguments, timeout_s=START_MAX_S)
        self.started_in_s = time.monotonic() - before

    def down(self) -> None:
        self.compose("--profile", "*", "down", "-v", "-t", "25", timeout_s=120.0)

    def compose(self, *arguments: str, timeout_s: float = 60.0, status: int = 0) -> str:
        """Its output, both streams. AssertionError when it ends otherwise."""
        return run("docker", "compose", *arguments, timeout_s=timeout_s, status=status)

    def crash(self, container: Container) -> None:
        """SIGKILL from outside, as when memory runs out: nobody asked for it, so its restart policy
        applies."""
        run(
            "docker", "run", "--rm", "--pid=host", "--user=0:0", "--entrypoint=/bin/sh",
            container.config["Image"], "-c", f"kill -9 {container.pid}",
        )  # fmt: skip

    # What is asked about it

    def containers(self, service: str = "") -> list[Container]:
        """All, of one service or of the whole project, by name."""
        filters = [f"label=com.docker.compose.project={self.name}"]
        if service:
            filters.append(f"label=com.docker.compose.service={service}")
        found = run("docker", "ps", "-aq", *(f"--filter={each}" for each in filters)).split()
        if not found:
            return []
        shown = json.loads(run("docker", "inspect", *found))
        made = [
            Container(
                id=each["Id"],
                name=each["Name"].lstrip("/"),
                service=each["Config"]["Labels"]["com.docker.compose.service"],
                state=each["State"],
                config=each["Config"],
                host=each["HostConfig"],
            )
            for each in shown
        ]
        return sorted(made, key=lambda container: container.name)

    def mesh_id(self, container: Container) -> str:
        """The id that its present life has on the mesh."""
        found = re.findall(r" id=(\S+) msg=starting", self.log(container))
        assert found, f"{container.name} has not started"
        return str(found[-1])

    def log(self, container: Container) -> str:
        return run("docker", "logs", container.id)

    def healthy(self, *services: str) -> bool:
        """Whether all containers (of these services) that should run are healthy."""
        return all(
            container.healthy or (container.service in ONCE and container.state["ExitCode"] == 0)
            for container in self.containers()
            if not services or container.service in services
        )

    def wait_healthy(self, *services: str, deadline_s: float = HEALTHY_MAX_S) -> None:
        wait(lambda: self.healthy(*services), deadline_s, f"{services or 'all'} healthy")


ONCE = ("credentials", "model", "bucket")  # run to their end before anything else


def run(*command: str, timeout_s: float = 60.0, status: int = 0) -> str:
    """Output of both streams. AssertionError when it does not end with `status`."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == status, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
    return done.stdout


def wait(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """AssertionError when it does not hold in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.25)
