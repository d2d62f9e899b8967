"""What holds for the whole mesh and outlives its nodes: tenants' quotas and hard pins.

Both lie in buckets of the message server. Every node follows them; whoever was asked for a hard pin
writes it down. Without the server the node goes on with what it knows, and catches up later.
"""

import asyncio
import logging
from functools import partial
from typing import NoReturn

from moonpool.bus import Bucket, BusUnavailable, Subscription
from moonpool.clock import Clock
from moonpool.kv import KEY_BYTES, BlockKey
from moonpool.messages import MoonpoolError
from moonpool.messages.codec import MalformedMessage
from moonpool.messages.ids import TenantId
from moonpool.messages.quota import decode_quota
from services.store.core import StoreCore

log = logging.getLogger(__name__)

READ_AGAIN_S = 60.0  # a change that was not told is known by then
RETRY_S = 1.0
HEARD_MAX = 256  # of more changes at once, everything is read again
LOOK_S = 0.1


class Rules:
    """One per node. `read` once before it serves, then `run`."""

    def __init__(self, core: StoreCore, quotas: Bucket, pins: Bucket, clock: Clock) -> None:
        self._core = core
        self._buckets = {"quotas": quotas, "pins": pins}
        self._clock = clock
        self._known: dict[str, dict[str, bytes]] = {"quotas": {}, "pins": {}}
        self._changed = asyncio.Event()
        self._heard: set[tuple[str, str]] = set()  # (which bucket, name)
        self._unsaved: dict[str, int] = {}  # name of a pin -> replicas; 0: unpinned
        self._saved = asyncio.Event()
        self._saved.set()
        self._well = True
        self.malformed = 0

    async def read(self) -> None:
        """Takes over what the buckets hold now; what they do not tell is tried again by `run`."""
        try:
            await self._read()
        except MoonpoolError as error:
            self._note(error)

    async def run(self) -> NoReturn:
        """Follows and writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write(), name="store: pins")
            while True:
                watches: list[Subscription] = []
                try:
                    for what, bucket in self._buckets.items():
                        watches.append(await bucket.watch(partial(self._hear, what)))
                    while True:
                        await self._follow()
                except MoonpoolError as error:
                    self._note(error)
                finally:
                    for watch in watches:
                        await watch.close()
                await self._clock.sleep(RETRY_S)

    async def wait_saved(self, wait_s: float) -> bool:
        """Whether every hard pin made until now is written down within the time; nobody waits for
        a server that is known to be away."""
        self._collect()
        return self._saved.is_set() if not self._well else await self._wait(self._saved, wait_s)

    def stats(self) -> dict[str, int]:
        return {"pins_unsaved": len(self._unsaved), "rules_malformed": self.malformed}

    # --- following ---

    def _hear(self, what: str, name: str) -> None:
        if len(self._heard) <= HEARD_MAX:
            self._heard.add((what, name))
        self._changed.set()

    async def _follow(self) -> None:
        """Everything once, then change by change, until it is time for everything again."""
        self._heard.clear()
        await self._read()
        self._note(None)
        ends_s = self._clock.now() + READ_AGAIN_S
        while (left_s := ends_s - self._clock.now()) > 0 and len(self._heard) <= HEARD_MAX:
            heard, self._heard = self._heard, set()
            self._changed.clear()
            for what, name in heard:
                self._take(what, name, await self._buckets[what].get(name) or b"")
            await self._wait(self._changed, left_s)

    async def _read(self) -> None:
        for what, bucket in self._buckets.items():
            now = await bucket.entries()
            for name in self._known[what].keys() | now.keys():
                self._take(what, name, now.get(name, b""))

    def _take(self, what: str, name: str, value: bytes) -> None:
        """Applies one value if it is another than before; b"": it is gone."""
        known = self._known[what]
        if known.get(name, b"") == value:
            return
        if value:
            known[name] = value
        else:
            del known[name]
        if what == "quotas":
            self._set_quota(name, value)
        else:
            self._set_pin(name, value)

    def _set_quota(self, name: str, value: bytes) -> None:
        try:
            self._core.tally.set_quota(TenantId(name), decode_quota(value) if value else None)
        except MalformedMessage:
            self.malformed += 1  # what was in force before stays so
            log.warning("a quota that makes no sense", extra={"tenant": name})

    def _set_pin(self, name: str, value: bytes) -> None:
        if name in self._unsaved:
            return
        tenant, _, hexed = name.rpartition(".")
        try:
            key, replicas = BlockKey(bytes.fromhex(hexed)), int(value or b"0")
        except ValueError:
            key, replicas = BlockKey(b""), 0
        if len(key) != KEY_BYTES or not tenant:
            self.malformed += 1
            return
        self._core.pins.restore(TenantId(tenant), key, replicas, self._clock.now())

    # --- writing ---

    def _collect(self) -> None:
        for tenant, key, replicas in self._core.pins.take_changes():
            self._unsaved[f"{tenant}.{key.hex()}"] = replicas
        if self._unsaved:
            self._saved.clear()

    async def _write(self) -> NoReturn:
        while True:
            self._collect()
            try:
                for name, replicas in list(self._unsaved.items()):
                    await self._save(name, replicas)
                    if self._unsaved.get(name) == replicas:
                        del self._unsaved[name]
            except MoonpoolError as error:
                self._note(error)
                await self._clock.sleep(RETRY_S)
            if not self._unsaved:
                self._saved.set()
            await self._clock.sleep(LOOK_S)

    async def _save(self, name: str, replicas: int) -> None:
        pins = self._buckets["pins"]
        if replicas:
            await pins.put(name, b"%d" % replicas)
        else:
            await pins.delete(name)

    async def _wait(self, event: asyncio.Event, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def _note(self, error: MoonpoolError | None) -> None:
        """One line when it begins to fail, one when it is well again."""
        if error is not None and self._well:
            level = logging.INFO if isinstance(error, BusUnavailable) else logging.WARNING
            log.log(level, "quotas and pins are not to be read: %s", error)
        elif error is None and not self._well:
            log.info("quotas and pins are read again")
        self._well = error is None
