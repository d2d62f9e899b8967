"""Tenants' quotas: refused or paid for with one's own, in every tier, counted and never silent."""

import pytest

from moonpool.cache import LruPolicy
from moonpool.messages.errors import CallerError
from moonpool.messages.ids import TenantId
from moonpool.messages.quota import TenantQuota, decode_quota, encode_quota
from moonpool.messages.store import PutEndItem, PutItem
from services.store.admission import WriteBudget
from services.store.core import StoreCore
from services.store.limits import Limits
from services.store.moves import Demotion, Erasure, Outcome, Promotion
from services.store.shelf import Shelf
from services.store.tiers import DramTier, NvmeTier, OssTier
from services.store.tiers.record import record_bytes
from tests.unit.store.test_core import SUMS, key

PAGE = 4096
RECORD = record_bytes(PAGE, PAGE)
ACME, EMU = TenantId("acme"), TenantId("emu")


def make_core(dram_pages: int = 20, nvme_records: int = 20) -> StoreCore:
    tier = NvmeTier(nvme_records * RECORD)
    budget = WriteBudget(tier.bytes_total, 0.0)
    shelf = Shelf(tier, headroom=0.0, budget=budget, first_serial=1)
    core = StoreCore(DramTier(dram_pages * PAGE), LruPolicy(), Limits(headroom=0.0), [shelf])
    shelf.end_load()
    shelf.set_condition(online=True, writable=True, health="ok")
    return core


def make_shared_core(dram_pages: int = 20) -> StoreCore:
    """Over a bucket."""
    tier = OssTier(1 << 30)
    budget = WriteBudget(tier.bytes_total, 0.0)
    shelf = Shelf(tier, headroom=0.0, budget=budget, first_serial=1)
    core = StoreCore(DramTier(dram_pages * PAGE), LruPolicy(), Limits(headroom=0.0), [shelf])
    shelf.end_load()
    shelf.set_condition(online=True, writable=True, health="ok")
    return core


def put(core: StoreCore, tenant: TenantId, *numbers: int, now: float = 0.0) -> list[str]:
    """A status per block: the slot's, or that of the commit."""
    items = [PutItem(key(n), PAGE, PAGE) for n in numbers]
    session, slots = core.put_start(tenant, items, 10.0, now)
    ends = [
        PutEndItem(key(n), s.generation, SUMS)
        for n, s in zip(numbers, slots, strict=True)
        if s.status == "ok"
    ]
    commit = core.begin_commit(session, ends, now) if ends else None
    done = iter(core.finish_commit(commit, [True] * len(ends), now) if commit else [])
    core.check()
    return [next(done) if s.status == "ok" else s.status for s in slots]


def move(core: StoreCore) -> None:
    """Makes all moves that are ordered, and those that follow from them."""
    while moves := core.ladder.take_moves():
        for each in moves:
            if isinstance(each, Demotion):
                core.ladder.end_demotion(each, Outcome.DONE, 0.0)
            elif isinstance(each, Promotion):
                core.ladder.end_promotion(each, Outcome.DONE, SUMS, 0.0)
            elif isinstance(each, Erasure):
                core.ladder.end_erasure(each, Outcome.DONE)
    core.check()


def here(core: StoreCore) -> list[int]:
    return sorted(int.from_bytes(each, "big") for each in core.live_keys())


def test_beyond_its_quota_a_tenant_is_refused_and_others_are_not() -> None:
    core = make_core()
    core.tally.set_quota(ACME, TenantQuota(dram_bytes=3 * PAGE))
    assert put(core, ACME, 1, 2, 3, 4) == [*["committed"] * 3, "over_quota"]
    assert put(core, EMU, 5, 6, 7, 8) == ["committed"] * 4
    assert put(core, ACME, 9) == ["over_quota"]
    stats = core.stats()
    assert stats.tenants["acme"].bytes_used == {"dram": 3 * PAGE, "nvme": 0}
    assert (stats.tenants["acme"].over_quota, stats.tenants["emu"].over_quota) == (2, 0)
    assert stats.counters["puts_over_quota"] == 2


def test_a_tenant_that_evicts_pays_with_its_own_least_recently_used() -> None:
    core = make_core()
    put(core, EMU, 100, 101)
    put(core, ACME, 1, 2, 3)
    core.tally.set_quota(ACME, TenantQuota(dram_bytes=3 * PAGE, over="evict"))
    core.get_end(core.get_start(ACME, [key(3)], 1.0, 1.0)[0], 1.0)
    core.get_end(core.get_start(ACME, [key(1)], 1.0, 2.0)[0], 2.0)
    assert put(core, ACME, 4, now=3.0) == ["committed"]
    assert here(core) == [1, 3, 4, 100, 101]
    assert core.stats().tenants["acme"].evicted == 1


def test_what_is_read_or_pinned_is_no_price_and_nothing_goes_for_nothing() -> None:
    core = make_core()
    core.tally.set_quota(ACME, TenantQuota(dram_bytes=3 * PAGE, over="evict"))
    put(core, ACME, 1, 2, 3)
    assert core.pin(ACME, [key(1)], "hard", 0.0, 0.0) == ["pinned"]
    core.get_start(ACME, [key(2), key(3)], 10.0, 0.0)
    assert put(core, ACME, 4) == ["over_quota"]
    assert here(core) == [1, 2, 3]


def test_a_quota_that_is_lowered_or_lifted_is_in_force_at_once() -> None:
    core = make_core()
    put(core, ACME, 1, 2, 3, 4)
    core.tally.set_quota(ACME, TenantQuota(dram_bytes=2 * PAGE, over="evict"))
    core.trim(1.0)
    assert len(here(core)) == 2
    core.tally.set_quota(ACME, None)
    assert put(core, ACME, 5, 6, 7, now=2.0) == ["committed"] * 3


def test_a_lower_tier_has_its_own_limit() -> None:
    core = make_core(dram_pages=30)
    core.tally.set_quota(ACME, TenantQuota(nvme_bytes=2 * RECORD))
    put(core, ACME, 1, 2, 3)
    put(core, EMU, 11, 12, 13)
    assert core.secure([key(n) for n in (1, 2, 3, 11, 12, 13)], 0.0)
    move(core)
    assert core.secure([key(n) for n in (1, 2, 3, 11, 12, 13)], 0.0) == [key(3)]
    assert core.ladder.counters["demotions_over_quota"] >= 1
    assert core.stats().tenants["acme"].bytes_used["nvme"] == 2 * RECORD


def test_below_too_a_tenant_may_pay_with_its_own() -> None:
    core = make_core(dram_pages=30)
    core.tally.set_quota(ACME, TenantQuota(nvme_bytes=2 * RECORD, over="evict"))
    put(core, ACME, 1, 2, 3)
    for number in (1, 2, 3):
        while core.secure([key(number)], 0.0):
            move(core)
    assert [core.ladder.is_below(key(n)) for n in (1, 2, 3)] == [False, True, True]
    assert core.stats().tenants["acme"].evicted == 1


def test_what_is_promoted_counts_and_makes_room_among_its_own() -> None:
    core = make_core()
    put(core, ACME, 1, 2, 3)
    core.secure([key(1)], 0.0)
    move(core)
    core.residents.drop(core.residents.objects[key(1)])
    core.tally.set_quota(ACME, TenantQuota(dram_bytes=2 * PAGE))
    assert core.promote([key(1)], 1.0) == 1
    move(core)
    assert 1 in here(core)
    assert core.stats().tenants["acme"].bytes_used["dram"] == 2 * PAGE


def test_hard_pins_are_bounded_by_the_quota() -> None:
    core = make_core()
    put(core, ACME, 1, 2, 3)
    core.tally.set_quota(ACME, TenantQuota(hard_bytes=2 * PAGE))
    keys = [key(1), key(2), key(3)]
    assert core.pin(ACME, keys, "hard", 0.0, 0.0) == ["pinned", "pinned", "over_quota"]
    assert core.pin(ACME, [key(1)], "none", 0.0, 0.0) == ["unpinned"]
    assert core.pin(ACME, [key(3)], "hard", 0.0, 0.0) == ["pinned"]
    assert core.stats().tenants["acme"].hard_bytes == 2 * PAGE


def test_a_quota_reads_back_and_nonsense_is_refused() -> None:
    quota = TenantQuota(dram_bytes=5, over="evict")
    assert decode_quota(encode_quota(quota)) == quota
    with pytest.raises(CallerError):
        encode_quota(TenantQuota(oss_bytes=-1))
