"""One way to a peer, from a NIC of ours to one of its: what is on it, how fast it is, whether it
rests. Pure."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from moonpool.transfer.base import Priority
from moonpool.transfer.resting import Rest

T = TypeVar("T")

KEEP = 7 / 8  # of what was learned, at each slice: the last dozen slices count
FORGET_S = 5.0  # a way that was idle for so long may be another by now
SETTLED_SLICES = 8
TELLING_BYTES = 64 << 10
HORIZON_S = 0.001  # a way is given work for so long ahead at most
ROUND_TRIP_S = 50e-6  # and for so long at least, or it idles until the next slice comes
SLICES_AHEAD_MIN = 4  # two streams, each with one slice under way and one behind it
STALL_S = 0.5  # a slice without an answer for so long, and for ten times what it should take
STALL_TIMES = 10.0
PROBE_S = 0.15  # the same for the one slice that tries a way after its rest


@dataclass(slots=True, eq=False)
class Load(Generic[T]):
    """A slice that waits for a way, or is on one."""

    item: T
    size_bytes: int
    ranks: tuple[int, ...]  # of each way: the lowest goes first
    priority: Priority
    way: int = -1  # that carries it; -1: none
    since_s: float = 0.0  # when that way was given it
    dead: bool = False  # nobody wants it any more
    failures: dict[int, int] = field(default_factory=dict)  # by way


@dataclass(slots=True, eq=False)
class NicLoad:
    """Bytes under way through one NIC of ours, to all peers."""

    name: str
    pending_bytes: int = 0
    bytes_moved: int = 0
    rests: int = 0


class Way(Generic[T]):
    def __init__(self, nic: NicLoad) -> None:
        self.nic = nic
        self.rest = Rest()
        self.carried: dict[Load[T], None] = {}  # oldest first
        self.pending_bytes = 0
        self.bytes_moved = 0
        self.used_s = -1.0  # when it was given something last
        self.failures = 0  # since it worked last
        self._left_s = float("-inf")  # when it failed last
        self._mark_s = 0.0  # since when the bytes that arrive next have been on their way
        self._fresh = True  # nothing was on it before what is on it now
        self._bytes = 0.0  # recent, fading
        self._seconds = 0.0
        self._slices = 0  # that speed was learned from

    def speed_bytes_s(self, now_s: float) -> float:
        """As learned lately; 0: unknown."""
        if not self._seconds or (not self.carried and now_s - self._mark_s > FORGET_S):
            return 0.0
        return self._bytes / self._seconds

    @property
    def settled(self) -> bool:
        """Enough was seen to judge it by."""
        return self._slices >= SETTLED_SLICES

    def probing(self, now_s: float) -> bool:
        """Its rest is over, and it has not shown yet that it works."""
        return 0.0 < self.rest.until_s <= now_s

    def has_room(self, size_bytes: int, left_s: float, now_s: float) -> bool:
        """Work for half of the time that is left in all, within bounds: what is given late is given
        knowing more. Little while nothing is known of the way, and one slice when it has to show
        that it works."""
        if self.rest.until_s:
            return not self.carried
        if len(self.carried) < SLICES_AHEAD_MIN:
            return True
        ahead_s = min(max(left_s / 2, ROUND_TRIP_S), HORIZON_S)
        return self.pending_bytes + size_bytes <= self.speed_bytes_s(now_s) * ahead_s

    def ahead_bytes(self, speed_bytes_s: float) -> float:
        """What a slice that is given now has to wait for. Of what others have on the NIC only a
        little: it may be for a peer that takes nothing any more."""
        others = self.nic.pending_bytes - self.pending_bytes
        return self.pending_bytes + min(others, speed_bytes_s * HORIZON_S)

    def give(self, load: Load[T], now_s: float) -> None:
        if not self.carried:
            if self.rest.until_s or now_s - self._mark_s > FORGET_S:
                self._bytes = self._seconds = 0.0
                self._slices = 0
            self._mark_s, self._fresh = now_s, True
        self.carried[load] = None
        self.pending_bytes += load.size_bytes
        self.nic.pending_bytes += load.size_bytes
        self.used_s = load.since_s = now_s

    def drop(self, load: Load[T]) -> None:
        """It is on this way no longer, however it ended."""
        del self.carried[load]
        self.pending_bytes -= load.size_bytes
        self.nic.pending_bytes -= load.size_bytes

    def arrived(self, load: Load[T], now_s: float) -> None:
        """Learns the speed, from slices that followed another. The first on an idle way tells of
        latency and of connecting too: it counts when it is better than what is known. Of small
        slices the price of each is most."""
        self.drop(load)
        self.bytes_moved += load.size_bytes
        self.nic.bytes_moved += load.size_bytes
        took_s, self._mark_s = now_s - self._mark_s, now_s
        better = self._slices and load.size_bytes * self._seconds > took_s * self._bytes
        if load.size_bytes >= TELLING_BYTES and (better or not self._fresh):
            self._bytes = self._bytes * KEEP + load.size_bytes
            self._seconds = self._seconds * KEEP + took_s
            self._slices += 1
        self._fresh = False
        self.failures = 0
        self.rest.over()

    def leave(self, now_s: float, since_s: float) -> None:
        """It failed a slice that it was given at `since_s`: it rests. What it had before it failed
        the last time ends with that failure, and is no new one."""
        if since_s > self._left_s:
            self.failures += 1
            self._left_s = now_s
            self.nic.rests += self.rest.failed(now_s)

    def overdue(self, speed_bytes_s: float, now_s: float) -> bool:
        """The oldest slice on it should have arrived long ago."""
        oldest = next(iter(self.carried), None)
        if oldest is None:
            return False
        age_s = now_s - oldest.since_s
        if self.rest.until_s:
            return age_s > PROBE_S
        ahead_s = self.pending_bytes / speed_bytes_s if speed_bytes_s > 0 else 0.0
        return age_s > max(STALL_S, STALL_TIMES * ahead_s)
