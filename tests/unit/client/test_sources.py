"""Which copy a reader takes, and how much of one node at a time."""

import asyncio
from random import Random

from moonpool.client.sources import Sources
from tests.support.until import until


async def test_the_least_busy_copy_is_read_and_the_local_one_while_it_is_not_busy() -> None:
    sources = Sources(Random(1), in_flight_max_bytes=100)
    assert {sources.pick(["a", "b"]) for _ in range(20)} == {"a", "b"}
    async with sources.reading("a", 60):
        assert {sources.pick(["a", "b"]) for _ in range(20)} == {"b"}
        assert sources.pick(["a", "b"], local=["a"]) == "a"
        async with sources.reading("a", 40):
            assert sources.pick(["a", "b"], local=["a"]) == "b"
    assert sources.stats() == {"reading_bytes": 0, "reads_held_back": 0}


async def test_readers_beyond_the_cap_wait_for_that_node_and_no_other() -> None:
    sources, done = Sources(Random(1), in_flight_max_bytes=100), list[int]()

    async def read(number: int) -> None:
        async with sources.reading("a", 60):
            done.append(number)

    async with sources.reading("a", 1000):  # a single larger one is let through
        readers = [asyncio.create_task(read(number)) for number in range(3)]
        await until(lambda: sources.stats()["reads_held_back"] == 3)
        async with sources.reading("b", 60):
            assert done == []
    await asyncio.gather(*readers)
    assert sorted(done) == [0, 1, 2]
