"""Several ways to one peer that behave like one path: each slice goes over the way that suits it
best, and over another when that one fails."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moonpool.messages.errors import BugError
from moonpool.transfer.job import COLLISIONS_MAX, Job, PathFailed
from moonpool.transfer.spraying.sizes import slice_bytes
from moonpool.transfer.spraying.spray import Spray
from moonpool.transfer.spraying.way import Load, NicLoad
from moonpool.transfer.topology import Topology

log = logging.getLogger(__name__)
WATCH_S = 0.05  # how often ways with work are looked at
SPARE_RANK = 3  # added to that of pairs that are only for when the others fail
CLASSES_MAX = 64  # kinds of places that memory lies in, as far as NICs are concerned


class Carrier(Protocol):
    """A path of a transport."""

    def start(self, job: Job) -> None: ...

    def take_back(self, job: Job) -> bool:
        """True when the job had not begun, and now never will here."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One of the ways, with what it is called and where it ends."""

    path: Carrier
    load: NicLoad  # of our NIC
    nic: str  # its name in the topology
    remote: int  # number of the peer's endpoint
    where: str  # for the log
    spare: bool = False


class SprayedPath:
    """Belongs to the loop. Jobs that it holds have it as their `carrier`: the engine tells it of
    every end before anybody else."""

    def __init__(
        self,
        name: str,
        peer: str,
        lanes: Sequence[Lane],
        topology: Topology,
        report: Callable[[Job, Exception | None, str], None],
        slice_s: float,
    ) -> None:
        """`slice_s`: a slice that a way carries in less time costs more than it brings."""
        self.name = name
        self._report = report  # to the engine
        self._slice_s = slice_s
        self.ways = len([lane for lane in lanes if not lane.spare])
        self._peer = peer
        self._lanes = lanes
        self._topology = topology
        self._spray: Spray[Job] = Spray([lane.load for lane in lanes])
        self._loads: dict[Job, Load[Job]] = {}
        self._ranks: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._watch_s = 0.0  # when the timer is due
        self._pumping = False

    def slice_bytes(self, payload_bytes: int) -> int:
        """How finely a transfer of so many bytes should be cut."""
        worth_bytes = self._spray.fastest_bytes_s(time.monotonic()) * self._slice_s
        return slice_bytes(payload_bytes, self.ways, worth_bytes)

    def start(self, job: Job) -> None:
        """Takes the job. Never blocks."""
        ranks = self._ranks_of(job)
        job.carrier = self
        self._loads[job] = self._spray.put(
            job, job.slice.payload, ranks, job.priority, time.monotonic()
        )
        self._pump()

    def _ranks_of(self, job: Job) -> tuple[int, ...]:
        """Of each way for this pair of memories: as good as its worse end."""
        key = (job.local.location, job.remote.ranks(self.name))
        ranks = self._ranks.get(key)
        if ranks is None:
            location, theirs = key
            ranks = tuple(
                max(self._topology.rank(location, lane.nic), theirs[lane.remote])
                + (SPARE_RANK if lane.spare else 0)
                for lane in self._lanes
            )
            if len(self._ranks) >= CLASSES_MAX:
                self._ranks.clear()
            self._ranks[key] = ranks
        return ranks

    # What the engine tells.

    def ended(self, job: Job, error: Exception | None) -> bool:
        """A way has ended with it. True: another has it now, or will; False: it is over here."""
        load, now_s = self._loads[job], time.monotonic()
        if error is None:
            self._arrived(load, now_s)
        elif not isinstance(error, PathFailed) or job.stopped is not None:
            self._spray.dropped(load)
        elif self._retried(job, load, error, now_s):
            self._pump()
            return True
        self._over(job)
        if isinstance(error, PathFailed) and self._spray.hopeless(now_s):
            self._give_up(error)
        self._pump()
        return False

    def _give_up(self, error: PathFailed) -> None:
        """The peer is not to be reached over any way: what waits need not find out one by one."""
        for load in self._spray.drain():
            job = load.item
            self._over(job)
            if job.claim():
                self._report(job, PathFailed(error.cause), self.name)

    def has_other(self, job: Job) -> bool:
        """Whether a way that does not have it is not at rest."""
        return self._spray.has_other(self._loads[job].way, time.monotonic())

    def forget(self, job: Job) -> None:
        """Nobody wants it any more, and it runs nowhere."""
        self._spray.dropped(self._loads[job])
        self._over(job)
        if self._loads and not self._pumping:
            self._pumping = True  # once for all that are forgotten now
            asyncio.get_running_loop().call_soon(self._pump_later)

    def _pump_later(self) -> None:
        self._pumping = False
        self._pump()

    def _over(self, job: Job) -> None:
        job.carrier = None
        del self._loads[job]
        if not self._loads and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arrived(self, load: Load[Job], now_s: float) -> None:
        way, rested = load.way, self._spray.ways[load.way].rest.until_s
        self._spray.arrived(load, now_s)
        if rested:
            log.info("way works again: %s over %s", self._peer, self._lanes[way].where)

    def _retried(self, job: Job, load: Load[Job], error: PathFailed, now_s: float) -> bool:
        collateral = error.collateral and job.collisions < COLLISIONS_MAX
        job.collisions += collateral
        way = load.way
        times = self._spray.ways[way].rest.times
        again = self._spray.failed(load, now_s, collateral=collateral)
        if self._spray.ways[way].rest.times != times:
            log.warning("way rests: %s over %s: %s", self._peer, self._lanes[way].where, error)
        if again and job.claimed:
            job.unclaim()
        return again

    # Moving on.

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while (handed := self._spray.next(time.monotonic())) is not None:
                self._hand(handed.load.item, self._lanes[handed.way])
        finally:
            self._pumping = False
        if self._loads and self._timer is None:
            self._watch_s = time.monotonic() + WATCH_S
            self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._watch)

    def _hand(self, job: Job, lane: Lane) -> None:
        try:
            lane.path.start(job)
        except Exception as error:  # it may be another's turn that this would end
            log.exception("slice for %s failed over %s", self._peer, lane.where)
            if job.carrier is self and job.claim():
                self._report(job, BugError(f"{self.name} failed: {error!r}"), self.name)

    def _watch(self) -> None:
        """Ways that do not answer are left, and those that have rested are tried. Who was held up
        himself has not heard what arrived meanwhile, and judges nobody."""
        now_s = time.monotonic()
        held_up = now_s > self._watch_s + WATCH_S
        self._timer = None
        for way in [] if held_up else self._spray.overdue(now_s):
            log.warning("way rests: %s over %s: silent", self._peer, self._lanes[way].where)
            for load in list(self._spray.ways[way].carried):
                job = load.item
                if self._lanes[way].path.take_back(job):
                    self._spray.taken_back(load, now_s)
                elif (runner := job.runner) is not None:
                    runner.cut(job)  # reports that the path failed
        self._pump()

    # Looking.

    @property
    def busy(self) -> bool:
        return bool(self._loads)

    def stats(self) -> dict[str, float]:
        ways = self._spray.stats(time.monotonic())
        return {
            "ways": len(ways),
            "ways_resting": sum(way["resting"] for way in ways),
            "slices_waiting": self._spray.waiting,
            "slices_moved_over": self._spray.retries,
        }


def sprayed_stats(paths: Sequence[SprayedPath], nics: Sequence[NicLoad]) -> dict[str, float]:
    """Of all peers, and of each NIC of ours by name."""
    out: dict[str, float] = {}
    for path in paths:
        for name, value in path.stats().items():
            out[name] = out.get(name, 0.0) + value
    for nic in nics:
        out[f"nic.{nic.name}.bytes"] = nic.bytes_moved
        out[f"nic.{nic.name}.bytes_under_way"] = nic.pending_bytes
        out[f"nic.{nic.name}.rests"] = nic.rests
    return out
