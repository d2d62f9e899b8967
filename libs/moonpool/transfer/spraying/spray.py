"""Which of several ways carries the next slice: by rank, load and learned speed. Pure.

Slices wait here and not on the ways: each way is given little ahead of time, so that a fast one
takes more, a slow one less, and one that fails holds up next to nothing. The next slice goes where
it is predicted to arrive first; when that way is full, to another if it arrives there before all
that waits has: a slow way helps with a long queue, and would only delay a short one.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from moonpool.transfer.base import Priority
from moonpool.transfer.lanes import Lanes
from moonpool.transfer.spraying.way import Load, NicLoad, Way

T = TypeVar("T")

SPEED_GUESS_BYTES_S = 1e9  # while nothing was learned of any way
SLOW_SHARE = 1 / 16  # of the fastest: slower ways delay more than they carry
TRIES_PER_WAY = 2
HOPELESS_TRIES = 4  # of all ways together
TRIES_MAX = 9  # over all ways: a peer that is gone is known after that many


@dataclass(frozen=True, slots=True)
class Handed(Generic[T]):
    """`load` is on way `way` from now on: start it there."""

    load: Load[T]
    way: int


class Spray(Generic[T]):
    """Time is whatever the caller says, in seconds, and never goes back."""

    def __init__(self, nics: list[NicLoad]) -> None:
        """A way per entry, in that order; ways through one NIC share its object."""
        self.ways: list[Way[T]] = [Way(nic) for nic in nics]
        self._classes: dict[tuple[int, ...], Lanes[Load[T]]] = {}
        self._turn: deque[tuple[int, ...]] = deque()  # classes, next to be served first
        self.waiting = 0
        self.retries = 0
        self._waiting_bytes = dict.fromkeys(Priority, 0)

    def put(
        self, item: T, size_bytes: int, ranks: tuple[int, ...], priority: Priority, now_s: float
    ) -> Load[T]:
        """A slice waits. `ranks`: of each way for this slice's memory, the lowest goes first and
        the others when those rest."""
        load = Load(item, size_bytes, ranks, priority)
        self._lanes(ranks).put(load, priority, now_s)
        self._count(load, 1)
        return load

    def next(self, now_s: float) -> Handed[T] | None:
        """A slice and the way that it is on from now on. None: nothing more can be started now."""
        for _ in range(len(self._turn)):
            lanes = self._classes[self._turn[0]]
            load = self._living(lanes, now_s)
            if load is None:
                del self._classes[self._turn.popleft()]
                continue
            self._turn.rotate(-1)
            way = self._choose(load, now_s)
            if way < 0:
                lanes.put_back(load, load.priority, now_s)
                continue
            self._count(load, -1)
            load.way = way
            self.ways[way].give(load, now_s)
            return Handed(load, way)
        return None

    def arrived(self, load: Load[T], now_s: float) -> None:
        """It is where it should be."""
        way, load.way = self.ways[load.way], -1
        way.arrived(load, now_s)
        if way.settled:
            if way.speed_bytes_s(now_s) < SLOW_SHARE * self.fastest_bytes_s(now_s):
                way.leave(now_s, now_s)
            else:
                way.rest.worked()

    def failed(self, load: Load[T], now_s: float, *, collateral: bool = False) -> bool:
        """Its way failed it: it waits for another, or, when `collateral` (the way was cut for
        another slice's sake), for any. False: every way failed it or others often enough, it is
        dropped."""
        way = load.way
        self._off(load)
        if not collateral:
            self.ways[way].leave(now_s, load.since_s)
            load.failures[way] = load.failures.get(way, 0) + 1
            if self._is_spent(load) or self.hopeless(now_s):
                return False
        self.retries += 1
        self._put_back(load, now_s)
        return True

    def _is_spent(self, load: Load[T]) -> bool:
        tries = [load.failures.get(index, 0) for index in range(len(self.ways))]
        return min(tries) >= TRIES_PER_WAY or sum(tries) >= TRIES_MAX

    def hopeless(self, now_s: float) -> bool:
        """Whether nobody is to be reached: every way rests, and what was tried meanwhile failed."""
        tries = [way.failures for way in self.ways if way.rest.now(now_s)]
        return len(tries) == len(self.ways) and 0 not in tries and sum(tries) >= HOPELESS_TRIES

    def drain(self) -> list[Load[T]]:
        """All that wait; none does afterwards."""
        found = [load for lanes in self._classes.values() for load in lanes.drain()]
        waiting = [load for load in found if not load.dead]
        for load in waiting:
            self._count(load, -1)
        return waiting

    def taken_back(self, load: Load[T], now_s: float) -> None:
        """It had not begun on its way, and waits again."""
        self._off(load)
        self._put_back(load, now_s)

    def dropped(self, load: Load[T]) -> None:
        """Nobody wants it any more, or it ended for a reason that no way is to blame for."""
        if load.way >= 0:
            self._off(load)
        elif not load.dead:
            load.dead = True  # out of its queue when its turn comes
            self._count(load, -1)

    def overdue(self, now_s: float) -> list[int]:
        """Ways that must be given up for now: they do not answer, and others might. They rest."""
        late = []
        speeds = self._speeds(now_s)
        for index, way in enumerate(self.ways):
            if way.overdue(speeds[index], now_s) and self.has_other(index, now_s):
                way.leave(now_s, now_s)
                late.append(index)
        return late

    def has_other(self, index: int, now_s: float) -> bool:
        """Whether another way than `index` is likely to work."""
        return any(
            i != index and not way.rest.now(now_s) and not way.probing(now_s)
            for i, way in enumerate(self.ways)
        )

    # Inside.

    def _lanes(self, ranks: tuple[int, ...]) -> Lanes[Load[T]]:
        lanes = self._classes.get(ranks)
        if lanes is None:
            lanes = self._classes[ranks] = Lanes()
            self._turn.append(ranks)
        return lanes

    def _living(self, lanes: Lanes[Load[T]], now_s: float) -> Load[T] | None:
        load = lanes.take(now_s)
        while load is not None and load.dead:
            load = lanes.take(now_s)
        return load

    def _off(self, load: Load[T]) -> None:
        self.ways[load.way].drop(load)
        load.way = -1

    def _put_back(self, load: Load[T], now_s: float) -> None:
        self._lanes(load.ranks).put_back(load, load.priority, now_s)
        self._count(load, 1)

    def _count(self, load: Load[T], more: int) -> None:
        self.waiting += more
        self._waiting_bytes[load.priority] += more * load.size_bytes

    def _choose(self, load: Load[T], now_s: float) -> int:
        """The way on which it arrives first, of the best that are not at rest; -1: wait."""
        speeds = self._speeds(now_s)
        alone = self.waiting == 1  # it is not made to wait for a way that may not work
        best_tier = (2, TRIES_PER_WAY, 0)
        found: list[tuple[float, float, int]] = []  # when it arrives, when last used, way
        for index, way in enumerate(self.ways):
            tries = load.failures.get(index, 0)
            if tries >= TRIES_PER_WAY or (way.rest.until_s and way.carried):
                continue
            doubt = 2 if way.rest.now(now_s) else int(alone and way.probing(now_s))
            tier = (doubt, tries, load.ranks[index])
            if tier > best_tier:
                continue
            if tier < best_tier:
                best_tier = tier
                found.clear()
            arrives_s = (way.ahead_bytes(speeds[index]) + load.size_bytes) / speeds[index]
            found.append((arrives_s, way.used_s, index))
        left_s = self._left_s(load, [way for _, _, way in found], speeds)
        for arrives_s, _, index in sorted(found):
            if self.ways[index].has_room(load.size_bytes, left_s, now_s):
                return index if arrives_s <= max(left_s, min(found)[0]) else -1
        return -1

    def _left_s(self, load: Load[T], ways: list[int], speeds: list[float]) -> float:
        """Until all that is as urgent as `load` has arrived, if these ways share it evenly."""
        if not ways:
            return 0.0
        ahead = self._waiting_bytes[Priority.FOREGROUND]
        if load.priority is Priority.BACKGROUND:
            ahead += self._waiting_bytes[Priority.BACKGROUND]
        under_way = sum(self.ways[index].pending_bytes for index in ways)
        return (ahead + under_way) / sum(speeds[index] for index in ways)

    def _speeds(self, now_s: float) -> list[float]:
        """Of each way; one that nothing is known of is as fast as the fastest."""
        known = [way.speed_bytes_s(now_s) for way in self.ways]
        guess = max(known) or SPEED_GUESS_BYTES_S
        return [speed or guess for speed in known]

    def fastest_bytes_s(self, now_s: float) -> float:
        """Of all ways, as learned; 0: unknown."""
        return max(way.speed_bytes_s(now_s) for way in self.ways)

    # Looking.

    def check(self) -> None:
        """Asserts every invariant."""
        for index, way in enumerate(self.ways):
            assert way.pending_bytes == sum(load.size_bytes for load in way.carried)
            assert way.nic.pending_bytes >= way.pending_bytes
            assert all(load.way == index for load in way.carried)
        assert 0 <= self.waiting <= sum(len(lanes) for lanes in self._classes.values())
        assert (self.waiting == 0) == (sum(self._waiting_bytes.values()) == 0)

    def stats(self, now_s: float) -> list[dict[str, float]]:
        """Of each way."""
        return [
            {
                "bytes": way.bytes_moved,
                "bytes_under_way": way.pending_bytes,
                "speed_bytes_s": way.speed_bytes_s(now_s),
                "rests": way.rest.times,
                "resting": way.rest.now(now_s),
            }
            for way in self.ways
        ]
