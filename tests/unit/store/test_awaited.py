"""What queued requests will read stays sooner than the rest."""

import pytest

from moonpool.cache import POLICY_NAMES, make_policy
from services.store.awaited import AWAITED_S
from services.store.core import StoreCore
from services.store.limits import Limits
from services.store.tiers import DramTier
from tests.support.core_scenes import ACME, PAGE, get, held, key, make_core, store


def test_what_a_queued_request_will_read_goes_after_all_others_and_that_is_no_use() -> None:
    core = make_core(pages=4)
    store(core, 1, 2, 3, now=0.0)
    assert core.promote([key(1), key(2), key(9)], 1.0) == 0
    store(core, 4, 5, now=2.0)
    assert held(core) == [1, 2, 4, 5]  # 3 went, not 2 and 1, which stood before it
    store(core, 6, 7, now=3.0)
    assert held(core) == [1, 2, 6, 7]
    lease, slots = get(core, 1, 2, now=4.0)  # the request has come
    assert [slot.status for slot in slots] == ["hit", "hit"]
    assert core.get_end(lease, 5.0)
    store(core, 8, 9, now=6.0)
    assert held(core) == [1, 2, 8, 9]
    store(core, 10, now=7.0)
    assert held(core) == [1, 8, 9, 10]  # and now they go as others do, the tail first
    core.check()


def test_awaited_blocks_go_when_nothing_else_can_and_when_nobody_came() -> None:
    core = make_core(pages=4)
    store(core, 1, 2, 3, 4, now=0.0)
    core.promote([key(n) for n in (1, 2, 3, 4)], 1.0)  # half of the tier, at most: the tail's
    lease, _ = get(core, 1, 2, now=2.0)
    store(core, 5, now=3.0)
    assert held(core) == [1, 2, 3, 5]  # 3 and 4 are awaited, 1 and 2 are read: one must go
    core.check()
    assert core.get_end(lease, 4.0)
    store(core, 6, now=1.0 + AWAITED_S)  # nobody came for 3: it is as good as new, others go
    store(core, 7, 8, now=2.0 + AWAITED_S)
    assert held(core) == [3, 6, 7, 8]
    store(core, 9, 10, now=3.0 + AWAITED_S)
    assert held(core) == [7, 8, 9, 10]
    core.check()


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_lets_others_go_before_what_is_awaited(policy: str) -> None:
    core = StoreCore(DramTier(20 * PAGE), make_policy(policy), Limits(headroom=0.0))
    store(core, *range(20), now=0.0)
    core.promote([key(n) for n in range(5)], 1.0)
    for number in range(100, 160):
        store(core, number, now=1.0 + number / 100)
    assert [n for n in held(core) if n < 20] == list(range(5))
    assert core.stats().counters["awaited"] == 5
    lease, _ = get(core, *range(5), now=20.0)
    assert core.get_end(lease, 21.0)
    for number in range(200, 280):
        store(core, number, now=100.0 + number / 10)
    core.check()


def test_what_is_awaited_and_removed_or_pinned_is_awaited_no_more() -> None:
    core = make_core(pages=4)
    store(core, 1, 2, 3, now=0.0)
    core.promote([key(1), key(2)], 1.0)
    store(core, 4, 5, now=2.0)  # 1 and 2 have stepped out of the order
    assert core.remove(ACME, [key(1)], 3.0) == ["removed"]
    assert core.pin(ACME, [key(2)], "soft", 5.0, 3.0) == ["pinned"]
    core.check()
    store(core, 6, 7, 8, now=4.0)
    assert held(core) == [2, 6, 7, 8]
    store(core, 9, now=50.0)
    core.check()
