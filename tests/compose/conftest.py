"""The compose file on a real engine. `run.sh` prepares engine and images, then runs these files, in
order of their names; without it they are not collected."""

import os
from collections.abc import Iterator

import pytest

from tests.compose.project import Project

if "COMPOSE_TESTS" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def project() -> Iterator[Project]:
    """A mesh from nothing: images built, started, healthy."""
    project = Project()
    project.down()
    project.up()
    yield project
    project.down()
