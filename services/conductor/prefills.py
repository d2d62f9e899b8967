"""Prefill options: where a prompt could be computed, and when its first token would come."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.conductor.demand import Demand
from services.conductor.fleet import Member
from services.conductor.picks import Picks
from services.conductor.predict import Predictor
from services.conductor.reuse import Reuse, Step, best_reuse
from services.conductor.sources import Sources

_EVALUATED_MAX = 16  # candidates looked at closely, and as many more with the longest prefix
_SAME_S = 1e-3  # bounds closer than this are taken as equal


@dataclass(frozen=True, slots=True)
class Candidate:
    """One instance before anybody worked out what it should load."""

    member: Member
    own_bit: int
    have_blocks: int  # leading blocks in its own pool
    queue_s: float  # until it would start on this prompt
    ratio: float  # slower than its kind by this factor


@dataclass(frozen=True, slots=True)
class PrefillOption:
    """One instance that could prefill, with the best it can do."""

    candidate: Candidate
    reuse: Reuse
    steps: list[Step]
    ttft_s: float  # queue and work, before any hand-over to a decode
    trusted: bool  # the prediction rests on samples

    @property
    def member(self) -> Member:
        return self.candidate.member


def queue_s(member: Member, prefill: Predictor, picks: Picks, now_s: float) -> float:
    """Seconds until `member` is through with what it has: as reported, less the time that passed
    since, plus what this conductor sent there and no report shows yet."""
    queued_s = 0.0
    load = member.load
    if load and load.queued_tokens > 0:
        prompts = max(1, load.queued_requests)
        tokens = load.queued_tokens / prompts
        queued_s = prompts * prefill.seconds(member.kind, member.id, tokens, 0)
        queued_s = max(0.0, queued_s - (now_s - member.load_at_s))
    return queued_s + picks.pending(member.id).work_s


def prefill_options(
    candidates: Sequence[Candidate],
    demand: Demand,
    sources: Sources,
    held_blocks: int,
    prefill: Predictor,
    rotation: int,
) -> list[PrefillOption]:
    """The candidates that can be best, each with its best reuse. `held_blocks` leading blocks are
    held by somebody."""
    curves: dict[str, Callable[[int], float]] = {}
    for candidate in candidates:
        kind = candidate.member.kind
        if kind not in curves:
            curves[kind] = _curve(kind, demand, prefill)

    def bound(candidate: Candidate) -> int:
        base = curves[candidate.member.kind](max(held_blocks, candidate.have_blocks))
        return int((candidate.queue_s + base * candidate.ratio) / _SAME_S)

    turn = rotation % len(candidates) if candidates else 0
    turned = [*candidates[turn:], *candidates[:turn]]
    closest = sorted(turned, key=bound)[:_EVALUATED_MAX]
    holders = sorted((c for c in turned if c.have_blocks), key=lambda c: -c.have_blocks)
    wanted = {c.member.id: c for c in (*closest, *holders[:_EVALUATED_MAX])}
    return [
        _option(candidate, demand, sources, curves[candidate.member.kind], prefill)
        for candidate in wanted.values()
    ]


def _option(
    candidate: Candidate,
    demand: Demand,
    sources: Sources,
    curve: Callable[[int], float],
    prefill: Predictor,
) -> PrefillOption:
    member, ratio = candidate.member, candidate.ratio
    steps = sources.steps(member.id, member.host, candidate.own_bit)
    reuse = best_reuse(steps, lambda blocks: curve(blocks) * ratio)
    trusted = prefill.trusted(member.kind, *demand.split(reuse.blocks))
    return PrefillOption(candidate, reuse, steps, candidate.queue_s + reuse.work_s, trusted)


def _curve(kind: str, demand: Demand, prefill: Predictor) -> Callable[[int], float]:
    """Compute seconds of the typical instance by leading blocks reused; each is worked out once."""
    known: dict[int, float] = {}

    def seconds(blocks: int) -> float:
        if blocks not in known:
            known[blocks] = prefill.base(kind, *demand.split(blocks))
        return known[blocks]

    return seconds
