"""The bus contract, buckets: values that outlive processes, on a real server and in memory."""

from tests.support.buses import MakeBus
from tests.support.until import until


async def test_what_was_put_is_got_by_others(make_bus: MakeBus) -> None:
    here, there = (await make_bus()).bucket("t-get"), (await make_bus()).bucket("t-get")
    assert await here.get("acme") is None
    await here.put("acme", b"1")
    await here.put("acme", b"2")
    await here.put("other.name", b"3")
    assert await there.get("acme") == b"2"
    assert await there.entries() == {"acme": b"2", "other.name": b"3"}


async def test_what_was_deleted_is_gone(make_bus: MakeBus) -> None:
    bucket = (await make_bus()).bucket("t-delete")
    assert await bucket.entries() == {}
    await bucket.delete("never")
    await bucket.put("a", b"1")
    await bucket.put("b", b"2")
    await bucket.delete("a")
    assert await bucket.get("a") is None
    assert await bucket.entries() == {"b": b"2"}


async def test_a_watcher_hears_of_each_change_until_it_closes(make_bus: MakeBus) -> None:
    here, there = (await make_bus()).bucket("t-watch"), (await make_bus()).bucket("t-watch")
    await here.put("before", b"1")
    heard: list[str] = []
    watch = await there.watch(heard.append)
    await here.put("a", b"1")
    await here.delete("a")
    await until(lambda: heard == ["a", "a"])
    await watch.close()
    await here.put("b", b"1")
    assert heard == ["a", "a"]
