"""The mover over vaults that break off, fail and come back."""

import asyncio
from collections.abc import Iterator

import pytest

from moonpool.cache import LruPolicy
from moonpool.clock import RealClock
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store import health
from services.store import mover as mover_module
from services.store.core import StoreCore
from services.store.limits import Limits
from services.store.lower import make_shelf
from services.store.mover import Mover
from services.store.tiers import DramTier, OssTier
from services.store.tiers.errors import VaultAway, VaultRefused
from services.store.tiers.record import Facts
from services.store.tiers.vault import Item
from tests.support.until import until

SIZE = 8192


def make_item(number: int) -> Item:
    key = BlockKey(number.to_bytes(16, "big"))
    return Item(Facts(key, TenantId("t"), SIZE, SIZE, number), 0)


class ScriptedVault:
    """Tells its records in two pages; `broken` is raised by whatever comes next."""

    name = "oss"
    is_shared = False
    is_local = False

    def __init__(self) -> None:
        self.broken: list[Exception] = []
        self.opened = 0
        self.reads = 0

    def _maybe(self) -> None:
        if self.broken:
            raise self.broken.pop(0)

    def open(self) -> Iterator[list[Item]]:
        self.opened += 1
        yield [make_item(1), make_item(2)]
        self._maybe()
        yield [make_item(3)]

    def write(self, item: Item, checksums: bytes, payload: memoryview) -> None:
        self._maybe()

    def read(self, item: Item, target: memoryview) -> bytes:
        self.reads += 1
        self._maybe()
        target[:] = bytes(SIZE)
        return bytes(8)

    def sync(self) -> None:
        pass

    def erase(self, item: Item) -> None:
        self._maybe()

    def probe(self) -> None:
        self._maybe()

    def close(self) -> None:
        return


class World:
    def __init__(self) -> None:
        self.vault = ScriptedVault()
        self.shelf = make_shelf(OssTier(1 << 20))
        tier = DramTier(1 << 20)
        self.core = StoreCore(tier, LruPolicy(), Limits(), [self.shelf])
        segment = memoryview(bytearray(1 << 20))
        self.mover = Mover(self.core.ladder, segment, RealClock(), self.settle)
        self.mover.add(self.shelf, self.vault, 1)

    def settle(self) -> None:
        self.mover.begin(self.core.ladder.take_moves())

    def ask(self, numbers: range) -> None:
        keys = [make_item(n).facts.key for n in numbers]
        self.core.get_start(TenantId("t"), keys, 1.0, 0.0)
        self.settle()

    async def __aenter__(self) -> "World":
        self.task = asyncio.create_task(self.mover.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        self.mover.close()
        self.core.check()


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a moment instead of a second."""
    monkeypatch.setattr(mover_module, "OPEN_AGAIN_S", 0.05)
    monkeypatch.setattr(mover_module, "LOOK_S", 0.02)
    monkeypatch.setattr(health, "WAIT_FIRST_S", 0.1)


async def test_a_listing_that_breaks_off_is_taken_up_again() -> None:
    world = World()
    world.vault.broken = [VaultAway("broke off")]
    async with world:
        await until(lambda: len(world.shelf.readable_keys()) == 3)
        assert world.vault.opened == 2
        assert world.shelf.tier.bytes_used == 3 * (SIZE + 4096)


async def test_what_waits_for_a_tier_that_went_away_does_not_try_it_one_by_one() -> None:
    world = World()
    async with world:
        await until(lambda: len(world.shelf.readable_keys()) == 3)
        world.vault.broken = [VaultRefused("gone"), VaultRefused("still gone")]
        world.ask(range(1, 4))
        await until(lambda: not world.core.ladder.loading)
        assert world.vault.reads == 1
        assert (world.shelf.online, world.shelf.health) == (False, "gone")
        assert world.core.ladder.counters["promotions_failed"] == 3
        await until(lambda: world.shelf.online)
        world.ask(range(1, 4))
        await until(lambda: not world.core.ladder.loading)
        assert world.core.ladder.counters["promotions_done"] == 3


async def test_removals_while_a_tier_is_away_are_made_up_for() -> None:
    world = World()
    async with world:
        await until(lambda: len(world.shelf.readable_keys()) == 3)
        world.vault.broken = [VaultRefused("gone"), VaultRefused("still gone")]
        key = make_item(1).facts.key
        assert world.core.remove(TenantId("t"), [key], 0.0) == ["removed"]
        world.settle()
        assert await world.mover.wait_erased(5.0)  # the try is over
        assert len(world.shelf.gone) == 1
        assert not world.shelf.online
        await until(lambda: not world.shelf.gone)
        assert len(world.shelf.readable_keys()) == 2
