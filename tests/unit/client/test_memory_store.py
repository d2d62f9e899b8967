"""The store in memory: what the common contract does not say, who goes when it is full."""

import pytest

from moonpool.client import MemoryStore, NoSpace, ValueTooLarge


async def test_who_was_used_least_recently_goes_pinned_softly_last_and_hard_never() -> None:
    now_s = 0.0
    store = MemoryStore(400, clock=lambda: now_s)
    for name in "abcd":
        await store.put(name, bytes(100))
    await store.pin("a", "hard")
    await store.pin("b", "soft", ttl_s=10.0)
    await store.get("c")
    await store.put("e", bytes(100))
    assert [each.name async for each in store.list_names()] == ["a", "b", "c", "e"]
    await store.put("f", bytes(200))
    assert [each.name async for each in store.list_names()] == ["a", "b", "f"]
    now_s = 11.0  # b's pin is over
    await store.put("g", bytes(100))
    assert [each.name async for each in store.list_names()] == ["a", "f", "g"]
    with pytest.raises(NoSpace):
        await store.put("h", bytes(350))
    assert await store.count() == 3
    assert store.stats() == {"values": 3, "bytes": 400, "evictions": 4}


async def test_what_never_fits_is_told_apart_in_a_batch() -> None:
    store = MemoryStore(100)
    done = await store.put_many({"a": bytes(50), "b": bytes(101)})
    assert done["a"] is True
    assert isinstance(done["b"], ValueTooLarge)
    await store.upsert("a", bytes(100))
    assert await store.size("a") == 100
