"""Names that a node knows, as tiers come and go."""

import random

from moonpool.kv.named import Kind, named_key, tail_of
from moonpool.messages import TenantId
from services.store.names import Named, Names, identify

T = TenantId("t")


def named(name: str, size_bytes: int = 1, tenant: TenantId = T) -> Named:
    return Named(tenant, name, size_bytes)


def test_names_lie_in_order_and_come_in_pages() -> None:
    names = Names()
    wanted = sorted(f"{a}{b}" for a in "xyz" for b in range(12))
    keys = {name: named_key(T, name) for name in wanted}
    shuffled = random.Random(5).sample(wanted, len(wanted))
    by_key = {key: named(name) for name, key in keys.items()}
    names.changed("dram", [keys[n] for n in shuffled], [], by_key.get)
    found, more = names.page(T, "", "", 1000)
    assert ([each.name for each in found], more) == (wanted, False)
    page, more = names.page(T, "y", "", 5)
    assert ([each.name for each in page], more) == (["y0", "y1", "y10", "y11", "y2"], True)
    page, more = names.page(T, "y", "y2", 100)
    assert ([each.name for each in page], more) == ([f"y{n}" for n in range(3, 10)], False)
    assert names.page(TenantId("other"), "", "", 10) == ([], False)
    names.check()


def test_a_name_is_there_until_its_last_tier_has_dropped_it() -> None:
    names, key = Names(), named_key(T, "a")
    names.changed("dram", [key], [], lambda _: named("a", 5))
    names.changed("nvme", [key], [], lambda _: None)
    names.changed("dram", [], [key], lambda _: None)
    assert [each.size_bytes for each in names.page(T, "", "", 9)[0]] == [5]
    names.changed("dram", [key], [], lambda _: named("a", 7))  # put anew
    assert [each.size_bytes for each in names.page(T, "", "", 9)[0]] == [7]
    names.changed("dram", [], [key], lambda _: None)
    names.changed("nvme", [], [key], lambda _: None)
    assert names.page(T, "", "", 9) == ([], False)
    assert names.stats() == {"names": 0, "names_unread": 0}
    names.check()


def test_what_lies_below_since_before_the_start_is_read_later() -> None:
    names, keys = Names(), [named_key(T, name) for name in ("a", "b", "c")]
    block = b"\x07" * 16
    names.changed("nvme", [*keys, block], [], lambda _: None)  # type: ignore[list-item]
    assert list(names.unread) == keys
    names.learn(keys[0], named("a"))
    names.learn(keys[1], None)  # its key looked like one
    names.changed("nvme", [], [keys[2]], lambda _: None)
    assert [each.name for each in names.page(T, "", "", 9)[0]] == ["a"]
    assert not names.unread
    names.check()


def test_an_object_is_known_by_its_own_words_alone() -> None:
    whole = memoryview(b"abc" + tail_of(3, "ü".encode(), Kind.VALUE))
    assert identify(T, whole) == Named(T, "ü", 3)
    broken = memoryview(b"abc" + tail_of(3, b"\xff\xfe", Kind.VALUE))
    assert identify(T, broken) is None
    assert identify(T, memoryview(bytes(100))) is None
