"""Prefill options: where a prompt could be computed, and when its first token would come."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.conductor.backlog import Backlog
from services.conductor.demand import Demand
from services.conductor.fleet import Member
from services.conductor.picks import Picks
from services.conductor.predict import Predictor
from services.conductor.reuse import Reuse, Step, best_reuse
from services.conductor.sources import Sources

_EVALUATED_MAX = 16  # candidates looked at closely, and as many more with the longest prefix
_SAME_S = 1e-3  # bounds closer than this are taken as equal


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits at one prefill: as reported, less the time that passed since, and what this
    conductor sent there that no report shows yet."""

    id: str
    backlog: Backlog | None
    picks: Picks
    now_s: float

    def total_s(self) -> float:
        """Seconds until all of it is done."""
        reported_s = self.backlog.total_s(self.now_s) if self.backlog else 0.0
        return reported_s + self.picks.pending(self.id).work_s

    def ahead_s(self, due_s: float) -> float:
        """Seconds until the turn of a prompt that is due at `due_s`."""
        reported_s = self.backlog.ahead_s(due_s, self.now_s) if self.backlog else 0.0
        return reported_s + self.picks.ahead_s(self.id, due_s)

    def behind(self, due_s: float) -> int:
        """Prompts whose turn comes after one due at `due_s`."""
        reported = self.backlog.behind(due_s) if self.backlog else 0
        return reported + self.picks.behind(self.id, due_s)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One instance before anybody worked out what it should load."""

    member: Member
    own_bit: int
    have_blocks: int  # leading blocks in its own pool
    queue_s: float  # until it is through with all it has
    ratio: float  # slower than its kind by this factor
    waiting: Waiting


@dataclass(frozen=True, slots=True)
class PrefillOption:
    """One instance that could prefill, with the best it can do."""

    candidate: Candidate
    reuse: Reuse
    steps: list[Step]
    wait_s: float  # until its turn comes
    trusted: bool  # the prediction rests on samples
    patience_s: float = 0.0  # when its turn is due, from now
    price_s: float = 0.0  # the delay it puts on others

    @property
    def member(self) -> Member:
        return self.candidate.member

    @property
    def ttft_s(self) -> float:
        """Wait and work, before any hand-over to a decode."""
        return self.wait_s + self.reuse.work_s


def prefill_options(
    candidates: Sequence[Candidate],
    demand: Demand,
    sources: Sources,
    held_blocks: int,
    prefill: Predictor,
    rotation: int,
    patience: float = 0.0,
) -> list[PrefillOption]:
    """The candidates that can be best, each with its best reuse. `held_blocks` leading blocks are
    held by somebody. A prompt's turn is due after `patience` times its own work."""
    curves: dict[str, Callable[[int], float]] = {}
    for candidate in candidates:
        kind = candidate.member.kind
        if kind not in curves:
            curves[kind] = _curve(kind, demand, prefill)

    def bound(candidate: Candidate) -> int:
        base = curves[candidate.member.kind](max(held_blocks, candidate.have_blocks))
        work_s = base * candidate.ratio
        waiting = candidate.waiting
        due_s = waiting.now_s + patience * work_s + demand.class_delay_s
        price_s = work_s * waiting.behind(due_s)
        return int((waiting.ahead_s(due_s) + work_s + price_s) / _SAME_S)

    turn = rotation % len(candidates) if candidates else 0
    turned = [*candidates[turn:], *candidates[:turn]]
    closest = sorted(turned, key=bound)[:_EVALUATED_MAX]
    holders = sorted((c for c in turned if c.have_blocks), key=lambda c: -c.have_blocks)
    wanted = {c.member.id: c for c in (*closest, *holders[:_EVALUATED_MAX])}
    return [
        _option(candidate, demand, sources, curves[candidate.member.kind], prefill, patience)
        for candidate in wanted.values()
    ]


def _option(
    candidate: Candidate,
    demand: Demand,
    sources: Sources,
    curve: Callable[[int], float],
    prefill: Predictor,
    patience: float,
) -> PrefillOption:
    member, ratio = candidate.member, candidate.ratio
    steps = sources.steps(member.id, member.spot, candidate.own_bit)
    reuse = best_reuse(steps, lambda blocks: curve(blocks) * ratio)
    trusted = prefill.trusted(member.kind, *demand.split(reuse.blocks))
    patience_s = patience * reuse.work_s + demand.class_delay_s
    due_s = candidate.waiting.now_s + patience_s
    wait_s = candidate.waiting.ahead_s(due_s)
    price_s = reuse.work_s * candidate.waiting.behind(due_s)
    return PrefillOption(candidate, reuse, steps, wait_s, trusted, patience_s, price_s)


def _curve(kind: str, demand: Demand, prefill: Predictor) -> Callable[[int], float]:
    """Compute seconds of the typical instance by leading blocks reused; each is worked out once."""
    known: dict[int, float] = {}

    def seconds(blocks: int) -> float:
        if blocks not in known:
            known[blocks] = prefill.base(kind, *demand.split(blocks))
        return known[blocks]

    return seconds
