"""Health and budget of lower tiers."""

from services.store.admission import DAY_S, WriteBudget
from services.store.health import FAILURES_MAX, WAIT_FIRST_S, WAIT_MAX_S, Health
from services.store.tiers.errors import VaultAway, VaultReadOnly, VaultRefused


def test_a_days_writes_are_spent_once_and_come_back_with_time() -> None:
    budget = WriteBudget(1000, fills_per_day=2.0)
    assert budget.take(1000, 0.0)
    assert not budget.take(100, 0.0)
    assert budget.take(100, DAY_S / 20)
    assert not budget.take(1001, DAY_S * 9)
    assert WriteBudget(1000, 0.0).take(1 << 60, 0.0)


def test_a_tier_steps_aside_after_failures_in_a_row_and_comes_back_by_a_probe() -> None:
    health = Health()
    assert (health.readable, health.text()) == (False, "starting")
    assert health.probe_due(0.0)
    health.succeeded(wrote=False)
    assert (health.readable, health.writable(0.0), health.text()) == (True, True, "ok")
    for _ in range(FAILURES_MAX - 1):
        health.failed(VaultAway("slow"), 0.0)
    assert health.readable
    health.succeeded(wrote=False)
    for _ in range(FAILURES_MAX):
        health.failed(VaultAway("slow"), 10.0)
    assert (health.readable, health.writable(10.0), health.text()) == (False, False, "slow")
    waits = []
    now_s = 10.0
    for _ in range(10):
        start_s = now_s
        while not health.probe_due(now_s):
            now_s += 0.5
        waits.append(now_s - start_s)
        health.failed(VaultAway("slow"), now_s)
    assert waits[0] == WAIT_FIRST_S
    assert waits == sorted(waits)
    assert waits[-1] == WAIT_MAX_S
    health.succeeded(wrote=False)
    assert health.text() == "ok"


def test_a_refusal_counts_at_once_and_a_read_only_tier_is_read() -> None:
    health = Health()
    health.succeeded(wrote=True)
    health.failed(VaultRefused("no such bucket"), 0.0)
    assert (health.readable, health.text()) == (False, "no such bucket")
    health.succeeded(wrote=False)
    health.failed(VaultReadOnly("denied"), 0.0)
    assert health.readable
    assert not health.writable(0.5)
    assert health.text() == "read-only: denied"
    health.succeeded(wrote=False)  # reads say nothing about writes
    assert not health.writable(0.5)
    assert health.writable(WAIT_FIRST_S)  # one may try
    health.succeeded(wrote=True)
    assert health.text() == "ok"
