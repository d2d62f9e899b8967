"""The publisher over a bus, on virtual time."""

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.clock import VirtualClock
from moonpool.kv import BlockKey, pack_keys
from moonpool.messages.codec import decode, encode
from moonpool.messages.events import KvEvents, SnapshotPage, SnapshotRequest
from moonpool.runtime import EventPublisher, new_context
from moonpool.settings import StoreSettings, load_settings
from moonpool.telemetry import names


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "little"))


class Mesh:
    """A store `n1` and a reader of everything it says."""

    def __init__(self) -> None:
        self.broker, self.clock = MemoryBroker(), VirtualClock()
        bus = MemoryBus(self.broker)
        self.context = new_context(
            "store", load_settings(StoreSettings, {"MOONPOOL_ID": "n1"}), bus, clock=self.clock
        )
        self.held: list[BlockKey] = []
        self.publisher = EventPublisher(self.context, {"dram": lambda: self.held})
        self.seen: list[KvEvents] = []
        self.reader = MemoryBus(self.broker)

    async def listen(self) -> None:
        await self.reader.subscribe(self.context.subjects.kv_events(), self._note)

    async def _note(self, subject: str, payload: bytes) -> None:
        assert subject == "mp.kv.events.n1"
        self.seen.append(decode(payload, KvEvents))


async def test_changes_go_out_together_within_a_few_milliseconds() -> None:
    mesh = Mesh()
    await mesh.listen()
    async with mesh.publisher as events:
        events.stored("dram", [key(1)])
        await mesh.clock.advance(0.01)
        events.stored("dram", [key(2)])
        assert mesh.seen == []
        await mesh.clock.advance(0.015)
        (message,) = mesh.seen
        assert (message.seq, message.stored) == (1, pack_keys([key(1), key(2)]))
        assert message.epoch == mesh.context.epoch
        counted = mesh.context.metrics.counter(names.EVENTS_PUBLISHED, "dram", "stored")
        assert counted.value == 2


async def test_many_changes_go_out_without_waiting() -> None:
    mesh = Mesh()
    await mesh.listen()
    async with mesh.publisher as events:
        events.stored("dram", [key(number) for number in range(3000)])
        await mesh.clock.advance(0.0)
        assert sum(len(message.stored) for message in mesh.seen) == 3000 * 16


async def test_what_is_left_goes_out_at_the_end() -> None:
    mesh = Mesh()
    await mesh.listen()
    async with mesh.publisher as events:
        events.removed("dram", [key(1)])
    await mesh.clock.advance(0.0)
    assert [message.removed for message in mesh.seen] == [key(1)]
    assert mesh.clock.stats()["sleepers"] == 0


async def test_an_idle_owner_still_shows_its_number() -> None:
    mesh = Mesh()
    await mesh.listen()
    async with mesh.publisher:
        await mesh.clock.advance(6.1)
        assert [message.seq for message in mesh.seen] == [1, 2, 3]
        assert all(not message.stored and not message.removed for message in mesh.seen)


async def test_the_snapshot_endpoint_gives_pages() -> None:
    mesh = Mesh()
    mesh.held[:] = [key(number) for number in range(10)]
    await mesh.context.serve([mesh.publisher.endpoint()])
    got, cursor = [], 0
    while True:
        request = encode(SnapshotRequest(cursor=cursor, keys_max=4))
        data = await mesh.reader.request(mesh.context.subjects.kv_snapshot("n1"), request, 5.0)
        page = decode(data, SnapshotPage)
        got.append(page.tiers["dram"])
        cursor = page.next_cursor
        if not cursor:
            break
    assert b"".join(got) == pack_keys(mesh.held)
    assert len(got) == 3
