"""The core against a dictionary, over thousands of random steps, with real bytes in a segment.

Goal: whatever is read under a lease that ended well is exactly what was committed under that key.
Method: hypothesis drives writers (some die, some write junk), readers (some too slow), pins,
removals and time; the model remembers only what was committed and not removed on purpose.
"""

import hashlib
import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moonpool.cache import POLICY_NAMES, make_policy
from moonpool.kv import BlockKey
from moonpool.kv.checksum import bad_chunks, chunk_checksums
from moonpool.messages.ids import TenantId
from moonpool.messages.store import GetSlot, PutEndItem, PutItem, PutSlot
from services.store.core import Commit, StoreCore
from services.store.limits import Limits
from services.store.tiers import DramTier

PAGE = 4096
KEYS = 12
TENANT = TenantId("t")
numbers = st.integers(0, KEYS - 1)
runs = st.lists(numbers, min_size=1, max_size=4, unique=True)
picks = st.integers(0, 63)


STEPS_PER_SEED = 4_000


def make_key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "big"))


def make_bytes(key: bytes, generation: int, size_bytes: int) -> bytes:
    seed = hashlib.sha256(key + generation.to_bytes(8, "big")).digest()
    return (seed * (size_bytes // len(seed) + 1))[:size_bytes]


class StoreAgainstModel(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(POLICY_NAMES), pages=st.integers(6, 24))
    def begin(self, policy: str, pages: int) -> None:
        self.now = 0.0
        self.segment = bytearray(pages * PAGE)
        limits = Limits(headroom=0.1, puts_max=50, leases_max=50, put_ttl_max_s=20.0)
        self.core = StoreCore(DramTier(pages * PAGE), make_policy(policy), limits)
        self.puts: list[tuple[int, list[tuple[PutItem, PutSlot]]]] = []
        self.commits: list[tuple[Commit, list[PutEndItem], list[bool]]] = []
        self.leases: list[tuple[int, float, list[tuple[BlockKey, GetSlot]]]] = []
        self.limbo: list[int] = []  # puts that ran out, their writers not yet locked out
        self.committed: dict[BlockKey, bytes] = {}  # may be evicted, never differ
        self.announced: set[BlockKey] = set()  # what an index elsewhere believes

    @rule(run=runs, pages=st.integers(1, 5), ttl=st.floats(0.5, 40.0))
    def open_a_put(self, run: list[int], pages: int, ttl: float) -> None:
        items = [PutItem(make_key(n), pages * PAGE - 64, (pages * PAGE - 64) // 4) for n in run]
        items = [i for i in items if i.size_bytes <= len(self.segment)]
        if self.core.puts_open == 50 or not items:
            return
        put, slots = self.core.put_start(TENANT, items, ttl, self.now)
        opened = [(i, s) for i, s in zip(items, slots, strict=True) if s.status == "ok"]
        for item, slot in opened:
            data = make_bytes(item.key, slot.generation, item.size_bytes)
            self.segment[slot.offset : slot.offset + item.size_bytes] = data
        for item, slot in zip(items, slots, strict=True):
            if slot.status == "exists":
                assert item.key in self.committed
        if opened:
            self.puts.append((put, opened))

    @rule(which=picks, sound=st.booleans(), abandon=st.booleans())
    def end_a_put(self, which: int, sound: bool, abandon: bool) -> None:
        if not self.puts:
            return
        put, opened = self.puts.pop(which % len(self.puts))
        items = []
        for item, slot in opened:
            written = make_bytes(item.key, slot.generation, item.size_bytes)
            sums = chunk_checksums(memoryview(written), item.chunk_bytes)
            sums = sums if sound else bytes(8) + sums[8:]
            items.append(PutEndItem(item.key, slot.generation, b"" if abandon else sums))
        commit = self.core.begin_commit(put, items, self.now)
        verdicts = []
        for _, obj, sums in commit.doubtful:
            view = memoryview(self.segment)[obj.place : obj.place + obj.size_bytes]
            verdicts.append(not bad_chunks(view, obj.chunk_bytes, sums))
        self.commits.append((commit, items, verdicts))

    @rule(which=picks)
    def verify_a_put(self, which: int) -> None:
        if not self.commits:
            return
        commit, items, verdicts = self.commits.pop(which % len(self.commits))
        results = self.core.finish_commit(commit, verdicts, self.now)
        sizes = {obj.generation: obj.size_bytes for _, obj, _ in commit.doubtful}
        for item, result in zip(items, results, strict=True):
            if result == "committed":
                size_bytes = sizes[item.generation]
                self.committed[BlockKey(item.key)] = make_bytes(
                    item.key, item.generation, size_bytes
                )

    @rule(run=runs, lease_s=st.sampled_from([0.0, 1.0, 5.0, 100.0]))
    def begin_to_read(self, run: list[int], lease_s: float) -> None:
        if self.core.leases_open == 50:
            return
        keys = [make_key(n) for n in run]
        lease, slots = self.core.get_start(TENANT, keys, lease_s, self.now)
        hits = [(k, s) for k, s in zip(keys, slots, strict=True) if s.status == "hit"]
        for key, slot in hits:  # what is read at once is right
            self.compare(key, slot)
        assert (lease > 0) == (bool(hits) and lease_s > 0)
        if lease:
            self.leases.append((lease, self.now + lease_s, hits))

    @rule(which=picks)
    def end_a_read(self, which: int) -> None:
        if not self.leases:
            return
        lease, until_s, hits = self.leases.pop(which % len(self.leases))
        read = [bytes(self.segment[s.offset : s.offset + s.size_bytes]) for _, s in hits]
        if self.core.get_end(lease, self.now):
            assert self.now <= until_s
            for (key, slot), got in zip(hits, read, strict=True):
                assert got == make_bytes(key, slot.generation, slot.size_bytes)

    @rule(run=runs)
    def remove(self, run: list[int]) -> None:
        keys = [make_key(n) for n in run]
        for key, result in zip(keys, self.core.remove(TENANT, keys, self.now), strict=True):
            if result in ("removed", "leased"):
                del self.committed[key]
                assert self.core.get_start(TENANT, [key], 0.0, self.now)[1][0].status == "miss"

    @rule(run=runs, kind=st.sampled_from(["soft", "hard", "none"]), ttl=st.floats(0.0, 30.0))
    def pin(self, run: list[int], kind: str, ttl: float) -> None:
        self.core.pin(TENANT, [make_key(n) for n in run], kind, ttl, self.now)

    @rule(run=runs)
    def expect(self, run: list[int]) -> None:
        assert self.core.promote([make_key(n) for n in run], self.now) == 0

    @rule(number=numbers)
    def a_bit_flips(self, number: int) -> None:
        key = make_key(number)
        lease, found = self.core.begin_inspection([key], self.now)
        is_flipped = number % 2 == 0
        (result,) = self.core.finish_inspection(lease, found, [not is_flipped], self.now)
        if result == "removed":
            del self.committed[key]

    @rule()
    def late_writers_are_locked_out(self) -> None:
        for put in self.limbo:
            self.core.free_expired(put, self.now)
        self.limbo.clear()

    @rule(seconds=st.floats(0.0, 8.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.core.tick(self.now)
        self.core.trim(self.now)

    @invariant()
    def all_invariants_hold(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.check()
        self.limbo += self.core.take_ended_puts()[1]
        stored, removed = self.core.take_changes()
        self.announced |= set(stored)
        self.announced -= set(removed)
        assert self.announced == set(self.core.live_keys()) <= set(self.committed)

    def compare(self, key: BlockKey, slot: GetSlot) -> None:
        view = memoryview(self.segment)[slot.offset : slot.offset + slot.size_bytes]
        assert view == self.committed[key]
        assert bad_chunks(view, slot.chunk_bytes, slot.checksums) == []

    def teardown(self) -> None:
        """When everybody is gone, only what is stored remains."""
        if not hasattr(self, "core"):
            return
        for commit, _, verdicts in self.commits:
            self.core.finish_commit(commit, verdicts, self.now)
        self.core.tick(self.now + 1000.0)
        self.limbo += self.core.take_ended_puts()[1]
        self.late_writers_are_locked_out()
        self.core.check()
        assert (self.core.puts_open, self.core.leases_open) == (0, 0)
        assert not self.core.residents.doomed


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, derandomize=True
)


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_steps_of_one_life_never_serve_wrong_bytes(seed: int) -> None:
    choose = random.Random(seed)
    store = StoreAgainstModel()
    store.begin(choose.choice(POLICY_NAMES), choose.randint(12, 30))

    def run() -> list[int]:
        return choose.sample(range(KEYS), choose.randint(1, 4))

    def half() -> bool:
        return choose.random() < 0.5

    steps: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: store.open_a_put(run(), choose.randint(1, 5), choose.uniform(0.5, 20.0))),
        (4, lambda: store.end_a_put(choose.randrange(64), not half() or half(), not half())),
        (4, lambda: store.end_a_put(choose.randrange(64), True, False)),
        (6, lambda: store.verify_a_put(choose.randrange(64))),
        (6, lambda: store.begin_to_read(run(), choose.choice([0.0, 1.0, 5.0, 100.0]))),
        (5, lambda: store.end_a_read(choose.randrange(64))),
        (1, lambda: store.remove(run())),
        (1, lambda: store.pin(run(), choose.choice(["soft", "none"]), choose.uniform(0, 30))),
        (1, lambda: store.pin(run()[:1], choose.choice(["hard", "none"]), 0.0)),
        (2, lambda: store.expect(run())),
        (1, lambda: store.a_bit_flips(choose.randrange(KEYS))),
        (3, store.late_writers_are_locked_out),
        (6, lambda: store.time_passes(choose.expovariate(1.0))),
    ]
    weights, verbs = [w for w, _ in steps], [verb for _, verb in steps]
    for step in range(STEPS_PER_SEED):
        choose.choices(verbs, weights)[0]()
        try:
            store.all_invariants_hold()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}") from error
    counters = store.core.counters
    seen = ("puts_committed", "puts_corrupt", "puts_reclaimed", "leases_expired", "gets_too_late")
    assert all(counters[each] for each in seen), counters
    assert store.core.residents.evictions > 5
    store.teardown()
