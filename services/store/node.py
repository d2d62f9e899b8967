"""The node: the core's verbs as typed requests and replies, over real memory and real time.

All of it runs on one event loop; only checksums are compared in threads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import NoReturn

import msgspec

from moonpool.cache import NO_HINT, BlockHint
from moonpool.clock import Clock
from moonpool.kv import KEY_BYTES, BlockKey, unpack_keys
from moonpool.messages.codec import encode
from moonpool.messages.ids import TenantId, check_id
from moonpool.messages.store import (
    DrainReply,
    DrainRequest,
    GetEndReply,
    GetEndRequest,
    GetSlot,
    GetStartReply,
    GetStartRequest,
    ListReply,
    ListRequest,
    PinReply,
    PinRequest,
    PromoteReply,
    PromoteRequest,
    PutEndReply,
    PutEndRequest,
    PutStartReply,
    PutStartRequest,
    PutWholeReply,
    PutWholeRequest,
    RemoveReply,
    RemoveRequest,
    SecureReply,
    SecureRequest,
    StatsReply,
    StatsRequest,
    WipeReply,
    WipeRequest,
)
from moonpool.transfer import LocalRegion
from services.store.asking import check_extent
from services.store.checking import Checker
from services.store.core import StoreCore
from services.store.errors import BadRequest
from services.store.gate import but_names
from services.store.listing import Listing
from services.store.mover import Mover
from services.store.presence import Presence
from services.store.securing import Securing
from services.store.spread import Spread
from services.store.whole import put_whole, with_data
from services.store.writers import Writers

OnChanges = Callable[[str, list[BlockKey], list[BlockKey]], None]  # (tier, stored, removed)

RUN_BLOCKS_MAX = 1 << 20
LOADING_MAX_S = 5.0  # longest wait of one get for lower tiers
ERASED_MAX_S = 2.0  # of one removal
ROOM_MAX_S = 1.0  # and of one put, for what must sink first
SAVED_MAX_S = 2.0  # for a hard pin to be written down
TICK_S = 0.1
CHECK_OBJECTS_MAX = 20_000  # above, all invariants at once would hold the loop for too long
CHECK_EVERY_S = 10.0


class StoreNode:
    """Verbs may run side by side; each changes the core in one go."""

    def __init__(
        self,
        core: StoreCore,
        region: LocalRegion,
        clock: Clock,
        on_changes: OnChanges,
        reply_max_bytes: int,
    ) -> None:
        self.core = core
        self.region = region
        self.drained = asyncio.Event()  # somebody asked us to drain
        self.drain_within_s = 0.0
        self.more_stats: Callable[[], dict[str, int]] = dict
        self.say_farewell: Callable[[float], Awaitable[None]] = _nobody_to_give_to
        self.on_relist: Callable[[], None] = lambda: None
        self.end_lines: Callable[[TenantId], None] = lambda tenant: None
        self.wait_saved: Callable[[float], Awaitable[bool]] = _nothing_to_save
        self._clock = clock
        self._on_changes = on_changes
        self._reply_max_bytes = reply_max_bytes
        self.readers = region.grant("r")
        self.writers = Writers(region)
        self._checker = Checker(region.view)
        self.mover = Mover(core.ladder, region.view, clock, self.settle)
        self._securing = Securing(core, self.mover, self.settle, clock.now)
        self._segment = region.view
        self.spread, self.presence = Spread(core), Presence()
        self.listing = Listing(core, region.view, self.mover)

    async def put_start(self, request: PutStartRequest) -> PutStartReply:
        check_id(request.tenant, "tenant")
        await self.make_room([item.size_bytes for item in request.items if item.size_bytes > 0])
        put, slots = self.core.put_start(
            request.tenant,
            request.items,
            request.ttl_s,
            self._clock.now(),
            hint=hint_of(request.run_blocks),
            replicas=request.replicas,
        )
        if not put:
            self.settle()
            return PutStartReply(0, slots)
        ttl_s = min(request.ttl_s, self.core.limits.put_ttl_max_s)
        sizes = [item.size_bytes for item in request.items]
        grant, slots = self.writers.admit(put, slots, sizes, ttl_s)
        self.settle()
        return PutStartReply(put, slots, grant)

    async def put_end(self, request: PutEndRequest) -> PutEndReply:
        if any(len(item.takes) not in (0, KEY_BYTES) for item in request.items):
            raise BadRequest(f"a key has {KEY_BYTES} bytes")
        commit = self.core.begin_commit(request.put, request.items, self._clock.now())
        epoch = self.presence.epoch
        self.settle()  # writers are out before their bytes are looked at
        sound = [False] * len(commit.doubtful)
        try:
            sound = await self._checker.are_sound([(o, sums) for _, o, sums in commit.doubtful])
        finally:
            if self.presence.epoch != epoch:  # its sender may have given up, and gone elsewhere
                sound = but_names(commit, sound)
            results = self.core.finish_commit(commit, sound, self._clock.now())
            self.settle()
        if any(item.takes for item in request.items):
            await self.mover.wait_erased(ERASED_MAX_S)  # else a crash would bring back the old one
        if request.durable:
            results = await self._securing.after_put(request.items, results)
        return PutEndReply(results)

    async def get_start(self, request: GetStartRequest) -> GetStartReply:
        if not request.lease_s:
            return self.look(request)
        check_id(request.tenant, "tenant")
        keys = keys_of(request.keys)
        hint, now_s = hint_of(request.run_blocks), self._clock.now()
        lease, slots = self.core.get_start(request.tenant, keys, request.lease_s, now_s, hint)
        self.settle()
        lease = await self._wait_for_loading(request, lease, keys, slots)
        return self._got(request, lease, keys, slots)

    def look(self, request: GetStartRequest) -> GetStartReply:
        """As `get_start` without a lease, which waits for nothing and counts as no use."""
        check_id(request.tenant, "tenant")
        keys = keys_of(request.keys)
        _, slots = self.core.get_start(request.tenant, keys, 0.0, self._clock.now())
        self.settle()
        return self._got(request, 0, keys, slots)

    def _got(
        self, request: GetStartRequest, lease: int, keys: list[BlockKey], slots: list[GetSlot]
    ) -> GetStartReply:
        if request.inline_bytes or request.tail_bytes:
            room_bytes = self._reply_max_bytes // 2
            is_all = with_data(self.core, self._segment, request, keys, slots, room_bytes)
            if is_all and lease:
                self.core.get_end(lease, self._clock.now())
                lease = 0
        reply = GetStartReply(lease, slots, self.readers if lease else None)
        if len(keys) > 256 and len(encode(reply)) > self._reply_max_bytes:
            if lease:
                self.core.get_end(lease, self._clock.now())
            raise BadRequest(f"{len(keys)} keys make a reply too large: ask for fewer at once")
        return reply

    def now(self) -> float:
        """The node's own clock."""
        return self._clock.now()

    async def promote(self, request: PromoteRequest) -> PromoteReply:
        check_id(request.tenant, "tenant")
        keys, hint = keys_of(request.keys), hint_of(request.run_blocks)
        loading = self.core.promote(keys, self._clock.now(), hint)
        self.settle()
        return PromoteReply(loading)

    async def get_end(self, request: GetEndRequest) -> GetEndReply:
        valid = self.core.get_end(request.lease, self._clock.now())
        self.settle()
        return GetEndReply(valid)

    async def put_whole(self, request: PutWholeRequest) -> PutWholeReply:
        check_id(request.tenant, "tenant")
        await self.make_room([len(item.data) for item in request.items if item.data])
        now_s, is_below = self._clock.now(), self.core.ladder.is_below
        below = [key for i in request.items if i.expected and is_below(key := BlockKey(i.key))]
        results = put_whole(self.core, self._segment, request.tenant, request.items, now_s)
        self.settle()
        if any(item.replace for item in request.items):
            await self.mover.wait_erased(ERASED_MAX_S)  # else a crash would bring back the old one
        if below:
            await self._securing.wait(below, ERASED_MAX_S)  # and else it would take both
        return PutWholeReply(results)

    async def list_names(self, request: ListRequest) -> ListReply:
        check_id(request.tenant, "tenant")
        return self.listing.page(request)

    async def wipe(self, request: WipeRequest) -> WipeReply:
        check_id(request.tenant, "tenant")
        self.end_lines(request.tenant)  # whoever goes on must ask for a capability again
        removed = await self.listing.wipe(request.tenant, self._clock.now())
        self.settle()
        await self.mover.wait_erased(ERASED_MAX_S)
        return WipeReply(removed)

    async def remove(self, request: RemoveRequest) -> RemoveReply:
        check_id(request.tenant, "tenant")
        keys = keys_of(request.keys)
        if request.reason == "corrupt":
            return RemoveReply(await self._inspect(keys))
        asked, keys = keys, self._unchanged(keys, request.generations)
        results = self.core.remove(request.tenant, keys, self._clock.now())
        if len(keys) < len(asked):
            by_key = dict(zip(keys, results, strict=True))
            results = [by_key.get(key, "miss") for key in asked]
        self.settle()
        await self.mover.wait_erased(ERASED_MAX_S)
        return RemoveReply(results)

    async def pin(self, request: PinRequest) -> PinReply:
        check_id(request.tenant, "tenant")
        keys = keys_of(request.keys)
        now_s, before = self._clock.now(), [self.core.pins.kind_of(key) for key in keys]
        results = self.core.pin(
            request.tenant, keys, request.kind, request.ttl_s, now_s, request.replicas
        )
        self.settle()
        if request.kind != "soft":
            await self.wait_saved(SAVED_MAX_S)  # what is not written down in time is so later
        told = [was if r != "miss" else "" for was, r in zip(before, results, strict=True)]
        return PinReply(results, told)

    async def stats(self, request: StatsRequest) -> StatsReply:
        said = self.core.stats()
        return msgspec.structs.replace(said, counters={**said.counters, **self.more_stats()})

    async def drain(self, request: DrainRequest) -> DrainReply:
        """Refused with BadRequest when the time makes no sense."""
        check_extent(request.within_s, 0, 0)
        self.core.drain()
        self.drain_within_s = request.within_s
        self.drained.set()
        return DrainReply(True)

    async def sink_pinned(self, within_s: float) -> None:
        """Hard pins are below before the node leaves, as far as time allows."""
        await self._securing.wait(self.core.pins.hard_keys(), within_s)

    async def sink(self, within_s: float) -> None:
        """Before leaving: what is worth keeping goes to lower tiers, as much as time allows."""
        residents, ends_s = self.core.residents, self._clock.now() + within_s
        everything_bytes = residents.tier.bytes_total
        self.core.secure(self.core.pins.hard_keys(), self._clock.now())
        while self.core.ladder.shelves and (left_s := ends_s - self._clock.now()) > 0:
            residents.trim(self._clock.now(), everything_bytes, free_bytes=everything_bytes)
            self.settle()
            if not await self.mover.wait_loaded([], left_s):
                break

    async def keep(self) -> NoReturn:
        """What time asks for, until cancelled. An AssertionError means a broken invariant: let it
        end the process."""
        checked_s = self._clock.now()
        while True:
            await self._clock.sleep(TICK_S)
            now_s = self._clock.now()
            self.core.tick(now_s)
            self.core.trim(now_s)
            self.settle()
            for put in await self.writers.lock_out():
                self.core.free_expired(put, self._clock.now())
            if now_s - checked_s >= CHECK_EVERY_S and self.is_idle:
                checked_s = now_s
                if len(self.core.residents.objects) <= CHECK_OBJECTS_MAX:
                    self.core.check()

    @property
    def is_idle(self) -> bool:
        """Nobody reads or writes."""
        return not self.core.puts_open and not self.core.leases_open

    def close(self) -> None:
        """Ends threads. Idempotent."""
        self._checker.close()
        self.mover.close()

    async def make_room(self, sizes: list[int]) -> None:
        """A burst larger than the headroom waits a little for lower tiers to take what is worth
        keeping."""
        ends_s = self._clock.now() + ROOM_MAX_S
        while not self.core.draining and not self.core.ladder.make_room(sizes, self._clock.now()):
            self.settle()
            left_s = ends_s - self._clock.now()
            if left_s <= 0 or not await self.mover.wait_loaded([], left_s):
                break

    async def _wait_for_loading(
        self, request: GetStartRequest, lease: int, keys: list[BlockKey], slots: list[GetSlot]
    ) -> int:
        """Fills in `slots` what comes from lower tiers in time; the lease's id."""
        lease_s = min(request.lease_s, self.core.limits.lease_max_s)
        ends_s = self._clock.now() + min(request.wait_s, LOADING_MAX_S, lease_s / 2)
        while late := [k for k, s in zip(keys, slots, strict=True) if s.status == "loading"]:
            left_s = ends_s - self._clock.now()
            if left_s <= 0:
                break
            if not await self.mover.wait_loaded(late, left_s):
                break
            hint = hint_of(request.run_blocks)
            lease = self.core.get_more(lease, keys, slots, lease_s, self._clock.now(), hint)
            self.settle()
        return lease

    def _unchanged(self, keys: list[BlockKey], generations: list[int]) -> list[BlockKey]:
        """Of these keys, those that still have their generation; all when none are given."""
        if not generations:
            return keys
        objects = self.core.residents.objects
        pairs = zip(keys, generations, strict=False)
        return [k for k, g in pairs if (obj := objects.get(k)) and obj.generation == g]

    async def secure(self, request: SecureRequest) -> SecureReply:
        check_id(request.tenant, "tenant")
        keys = keys_of(request.keys)
        check_extent(request.wait_s, len(keys), self.core.limits.keys_max)
        return SecureReply(await self._securing.answer(request.tenant, keys, request.wait_s))

    async def _inspect(self, keys: list[BlockKey]) -> list[str]:
        lease, found = self.core.begin_inspection(keys, self._clock.now())
        here = [(obj, obj.checksums) for obj in found if obj is not None]
        verdicts = [True] * len(here)  # not looked at: not guilty
        try:
            verdicts = await self._checker.are_sound(here)
        finally:
            queue = iter(verdicts)
            sound = [obj is None or next(queue) for obj in found]
            results = self.core.finish_inspection(lease, found, sound, self._clock.now())
            self.settle()
        return results

    def settle(self) -> None:
        """Passes on what the core changed: writers' rights and the index elsewhere."""
        ended, expired = self.core.take_ended_puts()
        for put in ended:
            self.writers.end(put)
        for put in expired:
            self.writers.expire(put)
        self.mover.begin(self.core.ladder.take_moves())
        residents = self.core.residents
        for name, changes in [
            (residents.tier.name, residents.changes),
            *((shelf.name, shelf.changes) for shelf in self.core.ladder.shelves),
        ]:
            if changes.take_relist():
                self.on_relist()
            if changes:
                stored, removed = changes.take()
                self.listing.changed(name, stored, removed)
                self._on_changes(name, stored, removed)


async def _nobody_to_give_to(within_s: float) -> None:
    return


async def _nothing_to_save(wait_s: float) -> bool:
    return True


def hint_of(run_blocks: int) -> BlockHint:
    return _known_hint(min(run_blocks, RUN_BLOCKS_MAX)) if run_blocks > 0 else NO_HINT


@lru_cache(maxsize=4096)
def _known_hint(run_blocks: int) -> BlockHint:
    """One object per length, however many blocks bear it."""
    return BlockHint(run_blocks)


def keys_of(packed: bytes) -> list[BlockKey]:
    try:
        return unpack_keys(packed)
    except ValueError as error:
        raise BadRequest(str(error)) from error
