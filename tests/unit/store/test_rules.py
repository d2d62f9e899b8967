"""Rules of the mesh while the server that keeps them comes and goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from moonpool.bus import BusUnavailable, MemoryBroker, MemoryBus, Subscription
from moonpool.clock import RealClock
from moonpool.messages.quota import TenantQuota, encode_quota
from services.store.core import StoreCore
from services.store.rules import Rules
from tests.support.until import until
from tests.unit.store.test_core import key
from tests.unit.store.test_quotas import ACME, make_core, put


class Bucket:
    """One of the memory bus, out of reach while `is_away`."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.inner = MemoryBus(broker).bucket(name)
        self.is_away = False

    def _ask(self) -> None:
        if self.is_away:
            raise BusUnavailable("away")

    async def put(self, key: str, value: bytes) -> None:
        self._ask()
        await self.inner.put(key, value)

    async def delete(self, key: str) -> None:
        self._ask()
        await self.inner.delete(key)

    async def get(self, key: str) -> bytes | None:
        self._ask()
        return await self.inner.get(key)

    async def entries(self) -> dict[str, bytes]:
        self._ask()
        return await self.inner.entries()

    async def watch(self, on_change: Callable[[str], None]) -> Subscription:
        self._ask()
        return await self.inner.watch(on_change)


@contextlib.asynccontextmanager
async def following(core: StoreCore, quotas: Bucket, pins: Bucket) -> AsyncIterator[Rules]:
    rules = Rules(core, quotas, pins, RealClock())
    await rules.read()
    task = asyncio.create_task(rules.run())
    try:
        yield rules
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_pin_made_while_the_server_is_away_is_written_down_later() -> None:
    broker, core = MemoryBroker(), make_core()
    quotas, pins = Bucket(broker, "q"), Bucket(broker, "p")
    pins.is_away = True
    put(core, ACME, 1)
    async with following(core, quotas, pins) as rules:
        core.pin(ACME, [key(1)], "hard", 0.0, 0.0, replicas=3)
        assert not await rules.wait_saved(5.0)  # nobody waits for what is known to be away
        assert rules.stats()["pins_unsaved"] == 1
        pins.is_away = False
        await until(lambda: not rules.stats()["pins_unsaved"])
        assert await pins.entries() == {f"acme.{key(1).hex()}": b"3"}
        assert core.pins.kind_of(key(1)) == "hard"


async def test_what_changed_while_the_server_was_away_is_known_once_it_is_back() -> None:
    broker, core = MemoryBroker(), make_core()
    quotas, pins = Bucket(broker, "q"), Bucket(broker, "p")
    await quotas.put("acme", encode_quota(TenantQuota(dram_bytes=1)))
    async with following(core, quotas, pins):
        assert core.quotas.get(ACME).dram_bytes == 1
        quotas.is_away = True
        await quotas.inner.put("acme", encode_quota(TenantQuota(dram_bytes=2)))  # is heard of
        await asyncio.sleep(0)
        assert core.quotas.get(ACME).dram_bytes == 1  # what was known stays in force
        quotas.is_away = False
        await until(lambda: core.quotas.get(ACME).dram_bytes == 2)


async def test_entries_that_make_no_sense_change_nothing() -> None:
    broker, core = MemoryBroker(), make_core()
    quotas, pins = Bucket(broker, "q"), Bucket(broker, "p")
    await quotas.put("acme", b"{")
    await pins.put("acme.nothex", b"1")
    await pins.put("noowner", b"1")
    await pins.put(f"acme.{key(1).hex()}", b"many")
    async with following(core, quotas, pins) as rules:
        assert rules.malformed == 4
        assert core.pins.stats()["pinned_hard"] == 0
        await quotas.put("acme", encode_quota(TenantQuota(hard_bytes=7)))
        await until(lambda: core.quotas.get(ACME).hard_bytes == 7)
