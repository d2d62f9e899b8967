"""Buses for the contract suites: in memory, and over a real NATS server."""

from collections.abc import AsyncIterator, Iterator

import pytest

from moonpool.bus import Bus, MemoryBroker, MemoryBus, NatsBus
from tests.support.buses import MakeBus
from tests.support.nats_server import NatsServer


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(params=["memory", "nats"])
async def make_bus(request: pytest.FixtureRequest) -> AsyncIterator[MakeBus]:
    """Makes any number of buses that hear one another; closes them afterwards."""
    broker = MemoryBroker()
    made: list[Bus] = []

    async def make() -> Bus:
        bus: Bus
        if request.param == "memory":
            bus = MemoryBus(broker)
        else:
            server: NatsServer = request.getfixturevalue("nats_server")
            bus = await NatsBus.connect(server.url)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        await bus.close()
