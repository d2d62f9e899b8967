"""What the in-memory twin adds: a look at what streams keep."""

from moonpool.bus import MemoryBroker, MemoryBus


async def test_a_stream_keeps_messages_and_drops_the_oldest_beyond_its_bytes() -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    await bus.ensure_stream("S", ["a.>"], 10)
    for number in range(4):
        await bus.publish_durable(f"a.{number}", b"1234", 1.0)
    await bus.publish("b.x", b"not kept")
    assert broker.kept("S") == [("a.2", b"1234"), ("a.3", b"1234")]
    await bus.close()
