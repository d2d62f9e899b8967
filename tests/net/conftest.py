"""Two hosts for all tests of a file, whole again before each."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.net.links import Host, NoNamespaces, inside, two_hosts

WIRES = 2


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Host, Host]]:
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(two_hosts(WIRES))
        except NoNamespaces as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield found


@pytest.fixture
def hosts(both: tuple[Host, Host]) -> Iterator[tuple[Host, Host]]:
    """(near, far), and the test runs on the near one."""
    for host in both:
        for wire in range(WIRES):
            host.heal(wire)
    with inside(both[0]):
        yield both
