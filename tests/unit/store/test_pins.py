"""Pins on keys: in every tier, over evictions and restarts."""

from moonpool.messages.ids import TenantId
from tests.unit.store.test_core import key
from tests.unit.store.test_quotas import ACME, EMU, here, make_core, move, put


def test_a_hard_pin_is_copied_below_at_once_and_never_leaves_there() -> None:
    core = make_core(dram_pages=4, nvme_records=3)
    put(core, ACME, 1)
    assert core.pin(ACME, [key(1)], "hard", 0.0, 0.0) == ["pinned"]
    move(core)
    (shelf,) = core.ladder.shelves
    for number in range(10, 40):
        put(core, EMU, number, now=1.0)
        core.secure([key(number)], 1.0)
        core.trim(1.0)
        move(core)
    assert shelf.find(key(1)) is not None
    assert 1 in here(core)


def test_what_lies_below_only_can_be_pinned_and_unpinned() -> None:
    core = make_core(nvme_records=2)
    put(core, ACME, 1)
    core.secure([key(1)], 0.0)
    move(core)
    core.residents.drop(core.residents.objects[key(1)])
    assert core.pin(EMU, [key(1)], "hard", 0.0, 0.0) == ["miss"]
    assert core.pin(ACME, [key(1)], "hard", 0.0, 0.0) == ["pinned"]
    assert core.remove(ACME, [key(1)], 0.0) == ["pinned"]
    (shelf,) = core.ladder.shelves
    assert shelf.next_victim(1.0) is None
    assert core.pin(ACME, [key(1)], "none", 0.0, 0.0) == ["unpinned"]
    assert shelf.next_victim(1.0) is not None
    assert core.remove(ACME, [key(1)], 0.0) == ["removed"]


def test_soft_pins_below_go_only_when_there_is_hardly_anything_else() -> None:
    core = make_core(nvme_records=4)
    put(core, ACME, 1, 2)
    core.secure([key(1), key(2)], 0.0)
    move(core)
    (shelf,) = core.ladder.shelves
    assert core.pin(ACME, [key(1), key(2)], "soft", 60.0, 0.0) == ["pinned", "pinned"]
    assert shelf.next_victim(1.0) is None
    core.tick(61.0)
    assert shelf.next_victim(61.0) is not None


def test_a_hard_pin_outlives_the_node_that_took_it() -> None:
    core = make_core()
    put(core, ACME, 1)
    core.pin(ACME, [key(1)], "hard", 0.0, 0.0, replicas=2)
    assert core.pins.take_changes() == [(ACME, key(1), 2)]
    assert core.pins.take_changes() == []
    after = make_core(dram_pages=4)
    after.pins.restore(ACME, key(1), 2, 0.0)  # before its object is there
    put(after, ACME, 1)
    for number in range(10, 30):
        put(after, EMU, number, now=1.0)
        move(after)
    assert 1 in here(after)
    assert after.stats().tenants["acme"].hard_bytes == 4096
    after.pins.restore(ACME, key(1), 0, 2.0)
    assert after.pins.kind_of(key(1)) == ""
    after.check()


def test_a_pin_known_for_another_tenant_protects_nothing() -> None:
    core = make_core(dram_pages=3, nvme_records=1)
    core.pins.restore(TenantId("stranger"), key(1), 1, 0.0)
    put(core, ACME, 1)
    assert core.remove(ACME, [key(1)], 0.0) == ["removed"]


def test_a_pin_stays_when_its_value_is_put_anew() -> None:
    core = make_core()
    put(core, ACME, 1)
    core.pin(ACME, [key(1)], "soft", 60.0, 0.0)
    core.remove(ACME, [key(1)], 0.0)
    put(core, ACME, 1)
    assert core.pins.kind_of(key(1)) == "soft"
