"""A tier that nodes share: what others put and erased there is known after a look."""

from moonpool.messages.ids import TenantId
from services.store.packed.table import not_among
from services.store.tiers import OssTier
from services.store.tiers.record import Facts
from services.store.tiers.vault import Item
from tests.unit.store.test_core import key
from tests.unit.store.test_quotas import ACME, PAGE, make_shared_core, move, put

EMU = TenantId("emu")


def item(number: int, tenant: TenantId = EMU) -> Item:
    return Item(Facts(key(number), tenant, PAGE, PAGE, 0), 0)


def test_what_others_put_is_found_and_counts() -> None:
    core = make_shared_core()
    (shelf,) = core.ladder.shelves
    put(core, ACME, 1, 2)
    core.ladder.load(shelf, [item(1), item(7), item(8)], 0.0, is_refresh=True)
    assert sorted(shelf.readable_keys()) == [key(7), key(8)]  # 1 is in dram: left alone
    assert not shelf.gone
    assert shelf.tier.bytes_used == 2 * shelf.records[key(7)].footprint
    core.ladder.load(shelf, [item(7), item(8), item(9)], 1.0, is_refresh=True)
    assert shelf.live == 3
    core.check()


def test_what_others_erased_is_forgotten_but_for_what_came_or_is_read_meanwhile() -> None:
    core = make_shared_core()
    (shelf,) = core.ladder.shelves
    core.ladder.load(shelf, [item(n) for n in (1, 2, 3)], 0.0, is_refresh=True)
    before = shelf.records.live_keys()
    put(core, ACME, 4)
    core.secure([key(4)], 0.0)
    move(core)
    core.promote([key(3)], 0.0)
    missing = not_among(before, [key(1), key(99)])
    assert sorted(missing) == [key(2), key(3)]
    assert shelf.forget(missing) == 1  # 3 is being read
    assert sorted(shelf.readable_keys()) == [key(1), key(3), key(4)]
    assert shelf.take_erasures() == []
    move(core)


def test_what_a_tenant_has_there_is_found_without_looking_at_each() -> None:
    core = make_shared_core()
    (shelf,) = core.ladder.shelves
    core.ladder.load(shelf, [item(1), item(2, ACME), item(3)], 0.0, is_refresh=True)
    shelf.drop(shelf.records[key(3)])
    assert (shelf.keys_of(EMU), shelf.keys_of(ACME)) == ([key(1)], [key(2)])
    assert shelf.keys_of(TenantId("nobody")) == []


def test_each_block_is_evicted_by_one_node_only() -> None:
    core = make_shared_core()
    (shelf,) = core.ladder.shelves
    assert isinstance(shelf.tier, OssTier)
    core.ladder.load(shelf, [item(n) for n in range(6)], 0.0, is_refresh=True)
    shelf.is_ours = lambda key: key[-1] % 2 == 1
    victim = shelf.next_victim(1.0)
    assert victim is not None
    assert victim.key == key(1)
