"""The node's core, scene by scene: puts, leases, eviction, pins, removal."""

import pytest

from moonpool.messages.ids import TenantId
from moonpool.messages.store import PutEndItem, PutItem, PutSlot
from services.store.errors import BadRequest, NodeDraining, ObjectTooLarge, TooManySessions
from tests.support.core_scenes import ACME, PAGE, SUMS, end, get, held, key, make_core, start, store


def test_a_block_is_seen_once_its_put_has_ended() -> None:
    core = make_core()
    put, slots = start(core, 1)
    assert get(core, 1)[1][0].status == "miss"
    assert core.take_changes() == ([], [])
    assert end(core, put, PutEndItem(key(1), slots[0].generation, SUMS), now=1.0) == ["committed"]
    assert core.take_changes() == ([key(1)], [])
    lease, hits = get(core, 1, now=1.0)
    assert (hits[0].status, hits[0].offset, hits[0].generation) == ("hit", slots[0].offset, 1)
    assert (hits[0].checksums, hits[0].tier, hits[0].size_bytes) == (SUMS, "dram", PAGE)
    assert core.get_end(lease, 2.0)


def test_a_second_put_of_the_same_key_is_told_so() -> None:
    core = make_core()
    start(core, 1)
    assert start(core, 1) == (0, [PutSlot("busy")])
    assert store(core, 2) == ["committed"]
    assert start(core, 2) == (0, [PutSlot("exists")])
    assert [s.status for s in start(core, 3, 3)[1]] == ["ok", "busy"]


def test_an_unfinished_put_loses_its_key_at_once_and_its_place_when_its_writer_is_locked_out() -> (
    None
):
    core = make_core(pages=1)
    put, slots = start(core, 1, ttl=5.0)
    assert start(core, 1, now=4.9)[1] == [PutSlot("busy")]
    assert start(core, 1, now=5.1)[1] == [PutSlot("no_space")]
    assert core.take_ended_puts() == ([], [put])
    assert core.take_ended_puts() == ([], [])
    core.check()
    core.free_expired(put, 5.2)
    core.check()
    assert start(core, 1, now=5.3)[1][0].status == "ok"
    assert end(core, put, PutEndItem(key(1), slots[0].generation, SUMS), now=5.4) == ["expired"]
    assert core.counters["puts_reclaimed"] == 1
    core.check()


def test_a_put_that_ended_in_time_is_told_once() -> None:
    core = make_core()
    put, slots = start(core, 1, 2)
    first, second = (s.generation for s in slots)
    end(core, put, PutEndItem(key(1), first, SUMS), now=0.0)
    assert core.take_ended_puts() == ([], [])
    end(core, put, PutEndItem(key(2), second, SUMS), now=0.0)
    assert core.take_ended_puts() == ([put], [])


def test_a_put_that_is_being_verified_is_not_reclaimed() -> None:
    core = make_core()
    put, slots = start(core, 1, ttl=1.0)
    commit = core.begin_commit(put, [PutEndItem(key(1), slots[0].generation, SUMS)], 0.9)
    core.tick(100.0)
    core.check()
    assert core.finish_commit(commit, [True], 100.0) == ["committed"]
    core.check()


def test_abandoned_corrupt_and_foreign_items_give_their_place_back() -> None:
    core = make_core()
    put, slots = start(core, 1, 2, 3)
    first, second, third = (s.generation for s in slots)
    assert end(core, put, PutEndItem(key(1), first, b""), now=0.0) == ["abandoned"]
    assert end(core, put, PutEndItem(key(2), second, SUMS), now=0.0, sound=False) == ["corrupt"]
    assert end(core, put, PutEndItem(key(3), third + 7, SUMS), now=0.0) == ["expired"]
    assert end(core, 99, PutEndItem(key(3), third, SUMS), now=0.0) == ["expired"]
    assert end(core, put, PutEndItem(key(3), third, SUMS * 2), now=0.0) == ["corrupt"]
    core.check()
    assert held(core) == []
    assert core.puts_open == 0
    assert core.residents.tier.bytes_used == 0


def test_the_least_recently_used_goes_when_room_is_needed() -> None:
    core = make_core(pages=3)
    store(core, 1, 2, 3)
    core.take_changes()
    lease, _ = get(core, 1)
    core.get_end(lease, 1.0)
    store(core, 4, now=2.0)
    assert held(core) == [1, 2, 4]  # 3 was the tail of the run 1, 2, 3
    assert core.take_changes() == ([key(4)], [key(3)])


def test_looking_is_not_a_use() -> None:
    core = make_core(pages=2)
    store(core, 1)
    store(core, 2)
    assert core.get_start(ACME, [key(1)], 0.0, 1.0)[1][0].status == "hit"
    assert core.leases_open == 0
    store(core, 3, now=2.0)
    assert held(core) == [2, 3]


def test_leased_blocks_stay_and_are_the_next_to_go_afterwards() -> None:
    core = make_core(pages=2)
    store(core, 1, 2)
    lease, _ = get(core, 1, 2)
    assert start(core, 3)[1] == [PutSlot("no_space")]
    assert core.get_end(lease, 1.0)
    core.check()
    assert store(core, 3, now=1.0) == ["committed"]
    assert held(core) == [1, 3]


def test_a_lease_is_counted_per_reader() -> None:
    core = make_core(pages=1)
    store(core, 1)
    first, _ = get(core, 1)
    second, _ = get(core, 1, 1)
    core.get_end(first, 1.0)
    assert start(core, 2, now=1.0)[1] == [PutSlot("no_space")]
    core.get_end(second, 1.0)
    core.check()
    assert start(core, 2, now=1.0)[1][0].status == "ok"


def test_a_reader_that_was_too_slow_is_told_and_blocks_nothing() -> None:
    core = make_core(pages=1)
    store(core, 1)
    lease, _ = get(core, 1, now=0.0)
    assert store(core, 2, now=10.2) == ["committed"]
    assert core.get_end(lease, 10.3) is False
    assert core.get_end(lease, 10.3) is False
    assert core.counters["leases_expired"] == 1


def test_a_lease_ends_at_its_time_even_when_nobody_looked_yet() -> None:
    core = make_core()
    store(core, 1)
    lease, _ = get(core, 1, now=0.01)
    assert core.get_end(lease, 10.02) is False


def test_a_removed_block_stays_readable_for_whoever_reads_it_and_its_key_is_free() -> None:
    core = make_core(pages=2)
    store(core, 1)
    core.take_changes()
    lease, old = get(core, 1)
    assert core.remove(ACME, [key(1), key(9)], 0.0) == ["leased", "miss"]
    assert core.take_changes() == ([], [key(1)])
    assert get(core, 1)[1][0].status == "miss"
    assert store(core, 1) == ["committed"]
    _, new = get(core, 1)
    assert old[0].offset != new[0].offset
    assert core.get_end(lease, 1.0)
    core.check()
    assert core.residents.tier.bytes_used == PAGE


def test_a_tenant_removes_and_pins_only_its_own() -> None:
    core = make_core()
    store(core, 1)
    other = TenantId("other")
    assert core.remove(other, [key(1)], 0.0) == ["miss"]
    assert core.pin(other, [key(1)], "hard", 0.0, 0.0) == ["miss"]
    assert core.remove(ACME, [key(1)], 0.0) == ["removed"]


def test_bytes_are_counted_per_tenant_from_put_start_on() -> None:
    core = make_core()
    store(core, 1, 2)
    core.put_start(TenantId("other"), [PutItem(key(3), PAGE + 8, 8)], 5.0, 0.0)
    assert core.residents.tenants.by_tenant() == {"acme": 2 * PAGE, "other": 2 * PAGE}
    core.remove(ACME, [key(1), key(2)], 0.0)
    core.tick(100.0)
    core.free_expired(core.take_ended_puts()[1][0], 100.0)
    assert core.residents.tenants.by_tenant() == {}


def test_headroom_is_restored_smoothly_and_the_last_object_stays() -> None:
    core = make_core(pages=10, headroom=0.3)
    store(core, *range(10))
    assert len(held(core)) == 10
    store(core, 10, now=1.0)  # one to fit, two more for headroom
    assert len(held(core)) == 8
    core.trim(2.0)
    assert len(held(core)) == 7
    core.trim(3.0)
    assert len(held(core)) == 7
    big = make_core(pages=10, headroom=0.3)
    put, slots = start(big, 1, pages=9)
    end(big, put, PutEndItem(key(1), slots[0].generation, SUMS), now=0.0)
    big.trim(1.0)
    assert held(big) == [1]


def test_hard_pins_never_go_and_are_bounded() -> None:
    core = make_core(pages=4)
    store(core, 1, 2, 3, 4)
    assert core.pin(ACME, [key(n) for n in (1, 2, 3, 9)], "hard", 0.0, 0.0) == [
        "pinned",
        "pinned",
        "over_quota",
        "miss",
    ]
    store(core, 5, 6, now=1.0)
    assert held(core) == [1, 2, 5, 6]
    assert start(core, 7, now=1.0, pages=3)[1] == [PutSlot("no_space")]
    assert held(core) == [1, 2, 5, 6]  # nothing went for what could not fit
    assert core.remove(ACME, [key(1)], 1.0) == ["pinned"]
    assert core.pin(ACME, [key(1)], "none", 0.0, 1.0) == ["unpinned"]
    assert core.remove(ACME, [key(1)], 1.0) == ["removed"]
    core.check()


def test_soft_pins_go_last_and_end_by_themselves() -> None:
    core = make_core(pages=2)
    store(core, 1, 2)
    core.pin(ACME, [key(1)], "soft", 60.0, 0.0)
    store(core, 3, now=1.0)
    assert held(core) == [1, 3]
    core.pin(ACME, [key(3)], "soft", 60.0, 1.0)
    store(core, 4, now=2.0)  # only soft pins are left: the older goes
    assert held(core) == [3, 4]
    core.tick(61.2)
    core.check()
    lease, _ = get(core, 4, now=62.0)
    core.get_end(lease, 62.0)
    store(core, 5, now=62.0)
    assert held(core) == [4, 5]


def test_a_soft_pin_that_was_renewed_or_hardened_does_not_end_early() -> None:
    core = make_core(pages=2)
    store(core, 1, 2)
    core.pin(ACME, [key(1), key(2)], "soft", 5.0, 0.0)
    core.pin(ACME, [key(1)], "soft", 50.0, 1.0)
    core.pin(ACME, [key(2)], "hard", 0.0, 1.0)
    core.tick(6.0)
    core.check()
    store(core, 3, now=6.0)
    assert held(core) == [2, 3]  # under pressure the soft one went
    assert core.pin(ACME, [key(2)], "soft", 1.0, 7.0) == ["pinned"]
    core.tick(9.0)
    assert core.remove(ACME, [key(2)], 9.0) == ["pinned"]


def test_a_block_that_a_reader_calls_corrupt_goes_only_when_the_node_agrees() -> None:
    core = make_core()
    store(core, 1, 2)
    core.pin(ACME, [key(2)], "hard", 0.0, 0.0)
    lease, found = core.begin_inspection([key(1), key(2), key(3)], 0.0)
    core.check()
    assert core.finish_inspection(lease, found, [True, False, True], 1.0) == [
        "intact",
        "removed",
        "miss",
    ]
    core.check()
    assert held(core) == [1]
    assert core.leases_open == 0


def test_a_draining_node_takes_no_puts_and_serves_readers() -> None:
    core = make_core()
    store(core, 1)
    core.drain()
    with pytest.raises(NodeDraining):
        start(core, 2)
    assert get(core, 1)[1][0].status == "hit"


def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    core = make_core(pages=2)
    with pytest.raises(ObjectTooLarge):
        start(core, 1, 2, pages=3)
    bad = [PutItem(b"short", 8, 8), PutItem(key(1), 0, 8), PutItem(key(1), 9, 8)]
    for item in bad:
        with pytest.raises(BadRequest):
            core.put_start(ACME, [PutItem(key(7), 8, 8), item], 1.0, 0.0)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(BadRequest):
            core.get_start(ACME, [key(1)], seconds, 0.0)
    with pytest.raises(BadRequest):
        core.get_start(ACME, [key(1)] * 16_385, 1.0, 0.0)
    with pytest.raises(BadRequest):
        core.pin(ACME, [key(1)], "forever", 1.0, 0.0)
    core.check()
    assert core.residents.objects == {}


def test_sessions_are_bounded() -> None:
    core = make_core(puts_max=1, leases_max=1)
    store(core, 1)
    start(core, 2)
    with pytest.raises(TooManySessions):
        start(core, 3)
    get(core, 1)
    with pytest.raises(TooManySessions):
        get(core, 1)
