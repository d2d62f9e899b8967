"""NICs on virtual time, and the best schedule that anybody could have found for them."""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from moonpool.transfer.base import Priority
from moonpool.transfer.spraying import Load, NicLoad, Spray, slice_bytes

GRAIN_BYTES = 64 << 10
WATCH_S = 0.02  # how often the shell looks for ways that do not answer


@dataclass
class Nic:
    """Serves slices one after another. From `fails_s` to `heals_s` nothing arrives: each slice ends
    with an error `detect_s` later, or never when that is negative."""

    speed_bytes_s: float
    latency_s: float = 10e-6
    fails_s: float = float("inf")
    heals_s: float = float("inf")
    detect_s: float = 100e-6
    free_s: float = 0.0  # when its last slice will have left

    def down(self, now_s: float) -> bool:
        return self.fails_s <= now_s < self.heals_s


@dataclass
class Outcome:
    took_s: float
    bytes_by_nic: list[int]
    retries: int
    rests: list[int]
    arrived_s: list[float] = field(default_factory=list)


class Fabric:
    """Carries slices of one `Spray` over fake NICs. Deterministic for a seed."""

    def __init__(self, nics: list[Nic], seed: int) -> None:
        self.nics = nics
        self.spray: Spray[int] = Spray([NicLoad(f"mlx5_{i}") for i in range(len(nics))])
        self.now_s = 0.0
        self.arrived_s: list[float] = []
        self._random = random.Random(seed)
        self._order = count()
        self._events: list[tuple[float, int, Load[int] | None, bool, float]] = []
        self._left = 0

    def transfer(
        self,
        size_bytes: int,
        ranks: tuple[int, ...] = (),
        priority: Priority = Priority.FOREGROUND,
    ) -> Outcome:
        """Runs until every byte has arrived."""
        began_s, before = self.now_s, [way.bytes_moved for way in self.spray.ways]
        ranks = ranks or (0,) * len(self.nics)
        each = slice_bytes(size_bytes, sum(rank == min(ranks) for rank in ranks))
        while size_bytes > 0:
            part = min(each, size_bytes)
            self.spray.put(part, part, ranks, priority, self.now_s)
            size_bytes -= part
            self._left += 1
        self._pump()
        self._at(self.now_s + WATCH_S, None, False)
        while self._left:
            self._step()
            self.spray.check()
        return Outcome(
            self.now_s - began_s,
            [way.bytes_moved - b for way, b in zip(self.spray.ways, before, strict=True)],
            self.spray.retries,
            [way.rest.times for way in self.spray.ways],
            self.arrived_s,
        )

    def idle(self, seconds: float) -> None:
        self.now_s += seconds

    def _at(self, when_s: float, load: Load[int] | None, well: bool) -> None:
        given_s = load.since_s if load else 0.0
        heapq.heappush(self._events, (when_s, next(self._order), load, well, given_s))

    def _pump(self) -> None:
        while (handed := self.spray.next(self.now_s)) is not None:
            self._carry(self.nics[handed.way], handed.load)

    def _carry(self, nic: Nic, load: Load[int]) -> None:
        begins_s = max(self.now_s, nic.free_s)
        noise = self._random.uniform(1.0, 1.01)
        ends_s = begins_s + load.size_bytes / nic.speed_bytes_s * noise
        if nic.down(begins_s) or (begins_s < nic.fails_s < ends_s):
            if nic.detect_s >= 0:
                self._at(max(self.now_s, nic.fails_s) + nic.detect_s, load, False)
            return
        nic.free_s = ends_s
        self._at(ends_s + nic.latency_s, load, True)

    def _step(self) -> None:
        when_s, _, load, well, given_s = heapq.heappop(self._events)
        self.now_s = max(self.now_s, when_s)
        if load is None:
            self._watch()
        elif load.way >= 0 and load.since_s == given_s:
            if well:
                self.spray.arrived(load, self.now_s)
                self.arrived_s.append(self.now_s)
                self._left -= 1
            else:
                assert self.spray.failed(load, self.now_s), "every way was given up"
        self._pump()

    def _watch(self) -> None:
        """What the shell does with ways that do not answer: it cuts what is on them."""
        for index in self.spray.overdue(self.now_s):
            for load in list(self.spray.ways[index].carried):
                assert self.spray.failed(load, self.now_s)
        if self._left:
            self._at(self.now_s + WATCH_S, None, False)


def best_s(size_bytes: int, nics: list[Nic], began_s: float = 0.0) -> float:
    """The least time in which anybody can do it who knows every NIC's future, in pieces of 64 KiB:
    giving each next piece to the NIC where it arrives first is optimal for equal pieces."""
    pieces = -(-size_bytes // GRAIN_BYTES)
    grain = min(size_bytes, GRAIN_BYTES)
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        if sum(_pieces_within(nic, middle, grain, began_s) for nic in nics) >= pieces:
            high = middle
        else:
            low = middle
    return high


def _pieces_within(nic: Nic, seconds: float, grain: int, began_s: float) -> int:
    spans: deque[tuple[float, float]] = deque()
    ends_s = began_s + seconds - nic.latency_s
    spans.append((began_s, min(ends_s, nic.fails_s)))
    spans.append((max(began_s, nic.heals_s), ends_s))
    each_s = grain / nic.speed_bytes_s
    return sum(int((until - since) / each_s + 1e-9) for since, until in spans if until > since)
