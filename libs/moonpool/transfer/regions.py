"""The owner's side of every transfer: registered regions, the grants on them, and who is inside.

Threads of the tcp transport ask here before they touch memory, so all of it is thread-safe.
`enter` hands out a Pass; while a Pass is held the bytes may change, and `unregister`, `revoke` and
`withdraw` know about it.
"""

import asyncio
import heapq
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import structs

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.arguments import number, seconds
from moonpool.transfer.errors import BadTransfer, GrantRefused, RegionClosed, TransferTimeout
from moonpool.transfer.memory import Memory
from moonpool.transfer.slices import Column
from moonpool.transfer.topology import Topology
from moonpool.transfer.wire import KEY_BYTES, refused

REMEMBER_EXPIRED_S = 60.0  # so that a late user hears "expired" and not "unknown"
LEAVE_WAIT_S = 0.005  # before a stream is cut
CUT_WAIT_S = 1.0  # for a cut stream's thread to leave a region: it takes microseconds


@dataclass(slots=True, eq=False)
class Pass:
    """The right to touch a region's bytes now. `cut` ends the holder's work at once."""

    region: "LocalRegion"
    key: bytes = field(repr=False)
    cut: Callable[[], None]


@dataclass(slots=True)
class _Issued:
    offset: int
    length: int
    rights: str
    expires_unix_s: float


@dataclass(slots=True, eq=False, repr=False)  # keys are in its fields
class LocalRegion:
    """Registered memory of this process. Make one with `TransferEngine.allocate`."""

    table: "RegionTable"
    id: int
    memory: Memory
    location: str
    closing: bool = False
    issued: dict[bytes, _Issued] = field(default_factory=dict)
    expiring: list[tuple[float, bytes]] = field(default_factory=list)  # heap of (when, key)
    inside: set[Pass] = field(default_factory=set)

    def __repr__(self) -> str:
        state = "unregistered" if self.closing else f"{len(self.issued)} grants"
        return f"<LocalRegion {self.table.name}/{self.id} of {self.length} bytes, {state}>"

    @property
    def length(self) -> int:
        return self.memory.length

    @property
    def address(self) -> int:
        return self.memory.address

    @property
    def view(self) -> memoryview:
        """The bytes, writable. Views that outlive `unregister` stay valid, but reach no peer."""
        return memoryview(self.memory.array)

    def grant(
        self, rights: str, *, offset: int = 0, length: int | None = None, ttl_s: float = 0.0
    ) -> RegionGrant:
        """A capability for `[offset, offset + length)`; rights "r", "w" or "rw". ttl_s 0: for as
        long as the region is registered; no other span that is not above it. Raises BadTransfer,
        RegionClosed."""
        return self.table.grant(self, rights, offset, length, ttl_s)

    def revoke(self, grant: RegionGrant) -> None:
        """From now on the grant is refused. Transfers over tcp that use it are cut and are out of
        the memory when this returns; a peer that copies through shared memory right now stops
        within one step: `withdraw` waits for it. Idempotent."""
        self.table.revoke(self, grant.key)

    async def withdraw(self, grant: RegionGrant, timeout_s: float = 5.0) -> None:
        """Revokes, and returns when no peer can touch the bytes through this grant any more.
        Raises TransferTimeout when a peer that mapped the region does not confirm it (stopped,
        or stuck): its memory must not be reused yet."""
        self.table.revoke(self, grant.key)
        await self.table.wait_gone(self, grant.key, timeout_s)

    async def unregister(self, timeout_s: float = 5.0) -> None:
        """Refuses new transfers, waits for those under way, cuts what is left after `timeout_s`.
        Raises TransferTimeout like `withdraw`. Idempotent."""
        await self.table.unregister(self, timeout_s)


class Notifier(Protocol):
    """Tells peers that reach our memory by themselves that it is withdrawn."""

    def announce(self, region: int, key: bytes | None) -> None:
        """Withdraws one grant, or with None all of a region. Never blocks."""

    def unconfirmed(self, region: int, key: bytes | None) -> int:
        """Peers that may still copy."""


class RegionTable:
    """All regions of one engine, by id."""

    def __init__(self, name: str, epoch: str, host_id: str) -> None:
        self.name = name
        self.epoch = epoch
        self.host_id = host_id
        self.endpoints: list[Endpoint] = []
        self.topology = Topology()
        self.notifiers: list[Notifier] = []  # of transports whose peers do without us
        self.pins: list[Callable[[LocalRegion], None]] = []  # of adapters; they block
        self.offer_line: Callable[[socket.socket, bytes], bool] = _no_lines  # from any thread
        self.refused: Counter[str] = Counter()  # by reason
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # for a change
        self._regions: dict[int, LocalRegion] = {}
        self._next_id = 1

    def add(self, memory: Memory, location: str) -> LocalRegion:
        with self._lock:
            region = LocalRegion(self, self._next_id, memory, location)
            self._regions[region.id] = region
            self._next_id += 1
        return region

    def regions(self) -> list[LocalRegion]:
        with self._lock:
            return list(self._regions.values())

    def grant(
        self, region: LocalRegion, rights: str, offset: int, length: int | None, ttl_s: float
    ) -> RegionGrant:
        offset = number(offset, "offset")
        length = region.length - offset if length is None else number(length, "length")
        ttl_s = seconds(ttl_s, "ttl_s", above_zero=False)
        if rights not in ("r", "w", "rw"):
            raise BadTransfer(f'rights {rights!r} are none of "r", "w", "rw"')
        if offset < 0 or length < 1 or offset + length > region.length:
            raise BadTransfer(
                f"[{offset}, {offset + length}) is outside a region of {region.length} bytes"
            )
        key = secrets.token_bytes(KEY_BYTES)
        now_s = time.time()
        expires = now_s + ttl_s if ttl_s > 0 else 0.0
        with self._lock:
            if region.closing:
                raise RegionClosed("the region is unregistered")
            self._forget_expired(region, now_s)
            region.issued[key] = _Issued(offset, length, rights, expires)
            if expires:
                heapq.heappush(region.expiring, (expires, key))
        return RegionGrant(
            segment=self.name,
            epoch=self.epoch,
            host_id=self.host_id,
            endpoints=self._endpoints(region.location),
            region=region.id,
            offset=offset,
            length=length,
            rights=rights,
            key=key,
            expires_unix_s=expires,
        )

    def _endpoints(self, location: str) -> list[Endpoint]:
        """Ours, with how near each is to memory there."""
        return [
            structs.replace(e, rank=self.topology.rank(location, e.nic)) if e.nic else e
            for e in self.endpoints
        ]

    def _forget_expired(self, region: LocalRegion, now_s: float) -> None:
        """Long expired grants go, so that a long-lived pool keeps no history."""
        while region.expiring and region.expiring[0][0] < now_s - REMEMBER_EXPIRED_S:
            region.issued.pop(heapq.heappop(region.expiring)[1], None)

    def knows(self, region_id: int, key: bytes) -> bool:
        with self._lock:
            region = self._regions.get(region_id)
            return region is not None and key in region.issued

    def check(
        self, region_id: int, key: bytes, offset: int, length: int
    ) -> tuple[LocalRegion, str]:
        """(region, rights) if a grant that covers this range is valid now. Raises GrantRefused."""
        with self._lock:
            region, issued = self._valid(region_id, key)
            if offset < issued.offset or offset + length > issued.offset + issued.length:
                raise self.refuse("bounds")
            return region, issued.rights

    def enter(
        self,
        region_id: int,
        key: bytes,
        right: str,
        offsets: Column,
        lengths: Column,
        cut: Callable[[], None],
    ) -> tuple[Pass, Column]:
        """A pass and the addresses of the ranges, given as offsets into the region. Raises
        GrantRefused; otherwise `leave` must follow."""
        with self._lock:
            region, issued = self._valid(region_id, key)
            if right not in issued.rights:
                raise self.refuse("rights")
            if not _inside(issued.offset, issued.offset + issued.length, offsets, lengths):
                raise self.refuse("bounds")
            held = Pass(region, key, cut)
            region.inside.add(held)
            if isinstance(offsets, list):
                return held, [offset + region.address for offset in offsets]
            return held, offsets + region.address

    def enter_local(self, region: LocalRegion, cut: Callable[[], None]) -> Pass:
        """For our own requests, which use the region as their local side. Raises RegionClosed."""
        with self._lock:
            if region.closing:
                raise RegionClosed("local region is unregistered")
            held = Pass(region, b"", cut)
            region.inside.add(held)
            return held

    def leave(self, held: Pass) -> None:
        with self._lock:
            held.region.inside.discard(held)
            if self._waiting:
                self._changed.notify_all()

    def revoke(self, region: LocalRegion, key: bytes) -> None:
        with self._lock:
            if region.issued.pop(key, None) is None:
                return
            self._cut_and_wait(lambda held: held.region is region and held.key == key, region)
        self._announce(region, key)

    def _announce(self, region: LocalRegion, key: bytes | None) -> None:
        for notifier in self.notifiers:
            notifier.announce(region.id, key)

    def _cut_and_wait(self, mine: Callable[[Pass], bool], region: LocalRegion) -> None:
        """With the lock held: cuts and waits until those threads have left. Who has moved its last
        byte and is just leaving may do so: a stream that is cut takes others' transfers along."""
        self._waiting += 1
        try:
            self._changed.wait_for(lambda: not any(map(mine, region.inside)), LEAVE_WAIT_S)
            for held in [p for p in region.inside if mine(p)]:
                held.cut()
            self._changed.wait_for(lambda: not any(map(mine, region.inside)), CUT_WAIT_S)
        finally:
            self._waiting -= 1

    async def wait_gone(self, region: LocalRegion, key: bytes | None, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while count := self._unconfirmed(region, key):
            if not time.monotonic() < deadline:  # nor when it is no number
                raise TransferTimeout(f"{count} peers may still copy to or from a withdrawn range")
            await asyncio.sleep(0.001)

    def _unconfirmed(self, region: LocalRegion, key: bytes | None) -> int:
        with self._lock:
            here = sum(1 for p in region.inside if key is None or p.key == key)
        return here + sum(n.unconfirmed(region.id, key) for n in self.notifiers)

    async def unregister(self, region: LocalRegion, timeout_s: float) -> None:
        with self._lock:
            region.closing = True
            region.issued.clear()
            self._regions.pop(region.id, None)
        self._announce(region, None)
        try:
            await self.wait_gone(region, None, timeout_s)
        except TransferTimeout:
            self._cut_all(region)
            await self.wait_gone(region, None, CUT_WAIT_S)
        finally:
            region.memory.close_fd()

    def _cut_all(self, region: LocalRegion) -> None:
        with self._lock:
            inside = list(region.inside)
        for held in inside:
            held.cut()

    def _valid(self, region_id: int, key: bytes) -> tuple[LocalRegion, _Issued]:
        region = self._regions.get(region_id)
        issued = region.issued.get(key) if region else None
        if region is None or issued is None:
            raise self.refuse("unknown")
        if issued.expires_unix_s and issued.expires_unix_s <= time.time():
            raise self.refuse("expired")
        return region, issued

    def refuse(self, reason: str) -> GrantRefused:
        """The refusal, counted."""
        self.refused[reason] += 1
        return refused(self.name, reason)

    def stats(self) -> dict[str, float]:
        with self._lock:
            return {
                "regions": len(self._regions),
                "registered_bytes": sum(r.length for r in self._regions.values()),
                "grants": sum(len(r.issued) for r in self._regions.values()),
                "refusals": self.refused.total(),
                **{f"refusals.{reason}": count for reason, count in dict(self.refused).items()},
                "transfers_inside": sum(len(r.inside) for r in self._regions.values()),
            }


def _no_lines(sock: socket.socket, key: bytes) -> bool:
    return False


def _inside(start: int, end: int, offsets: Column, lengths: Column) -> bool:
    """Whether every range is a part of `[start, end)`. Safe against numbers that wrap around."""
    if isinstance(offsets, list) or isinstance(lengths, list):
        if len(offsets) == len(lengths) == 1:
            return start <= offsets[0] <= end - lengths[0] and lengths[0] > 0
        pairs = zip(offsets, lengths, strict=True)
        return all(start <= offset <= end - length and length > 0 for offset, length in pairs)
    fits = (offsets >= start) & (lengths > 0) & (lengths <= end - start)
    return bool((fits & (offsets <= end - lengths)).all())
