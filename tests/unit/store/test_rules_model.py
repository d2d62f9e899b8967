"""The core with pins, quotas, durable copies and promotions ahead, over thousands of random steps.

Goal: nothing but the right bytes is ever read; what is pinned hard stays, in some tier, until it is
unpinned, however full everything is; nobody is above a quota that was in force when it put.
Method: the world of `test_ladder_model`, where nothing is damaged, and more verbs.
"""

import pytest

from moonpool.cache import BlockHint
from moonpool.kv import BlockKey
from moonpool.messages.quota import TenantQuota
from services.store.objects import State
from services.store.records import Stage
from tests.unit.store.test_ladder_model import DRAM_PAGES, PAGE, TENANT, World

STEPS = 1_000


class RuledWorld(World):
    outcomes = (12, 0, 1)

    def begin_life(self) -> None:
        super().begin_life()
        self.hard: set[BlockKey] = set()
        self.limit_bytes: int | None = None

    def pin(self) -> None:
        key = self.run()[0]
        kind = self.choose.choice(["hard", "soft", "soft", "none"])
        (said,) = self.core.pin(TENANT, [key], kind, self.choose.uniform(0, 20), self.now)
        if said == "pinned" and kind == "hard":
            self.hard.add(key)
        elif said == "unpinned":
            self.hard.discard(key)

    def secure(self) -> None:
        keys = self.run()
        missing = self.core.secure(keys, self.now)
        assert set(missing) <= set(keys)

    def look_ahead(self) -> None:
        keys = self.run()
        loading = self.core.promote(keys, self.now, BlockHint(self.choose.randrange(200)))
        assert loading <= len(keys)

    def set_quota(self) -> None:
        pages = self.choose.randint(DRAM_PAGES // 2, DRAM_PAGES)
        quota = TenantQuota(
            dram_bytes=pages * PAGE,
            nvme_bytes=self.choose.choice([None, 30 * PAGE]),
            over=self.choose.choice(["refuse", "evict"]),
        )
        self.core.tally.set_quota(TENANT, self.choose.choice([quota, quota, None]))

    def put(self) -> None:
        used = self.core.residents.tenants.by_tenant().get(TENANT, 0)
        super().put()
        limit = self.core.quotas.get(TENANT).dram_bytes
        now_used = self.core.residents.tenants.by_tenant().get(TENANT, 0)
        assert limit is None or now_used <= max(limit, used)

    def remove(self) -> None:
        key = self.run()[0]
        (said,) = self.core.remove(TENANT, [key], self.now)
        if said == "pinned":
            assert key in self.hard
            return
        self.value.pop(key, None)
        self.take_moves()

    def check(self) -> None:
        super().check()
        self.core.pins.take_changes()
        for key in self.hard & self.value.keys():
            assert self.is_here(key), key.hex()

    def is_here(self, key: BlockKey) -> bool:
        obj = self.core.residents.objects.get(key)
        if obj is not None and obj.state is State.LIVE:
            return True
        records = (shelf.records.get(key) for shelf in self.core.ladder.shelves)
        return any(record is not None and record.stage is Stage.LIVE for record in records)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_pinned_stays_and_what_is_read_is_right(seed: int) -> None:
    world = RuledWorld(seed)
    verbs = [
        (8, world.put),
        (10, world.begin_read),
        (8, world.end_read),
        (1, world.remove),
        (20, world.make_a_move),
        (10, world.time_passes),
        (1, world.weather),
        (3, world.pin),
        (2, world.secure),
        (3, world.look_ahead),
        (1, world.set_quota),
    ]
    seen: dict[str, int] = {}
    for step in range(STEPS):
        world.take_moves()
        world.choose.choices([verb for _, verb in verbs], [w for w, _ in verbs])[0]()
        try:
            world.check()
            if step % 500 == 499:
                for name, count in world.core.stats().counters.items():
                    seen[name] = seen.get(name, 0) + count
                world.die()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}") from error
    for name in ("promoted_ahead", "demotions_done", "puts_over_quota"):
        assert seen[name] > 0, f"{name} never happened"
