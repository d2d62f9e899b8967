"""The policy seam: everybody who could run a request comes in, one way to run it goes out.

All policies see the same candidates, queues, predictions and bandwidths, so that they differ in
what they choose and in nothing else. They change nothing; the core counts what was chosen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from moonpool.messages.ids import OwnerId
from services.conductor.decodes import HORIZON_TOKENS, DecodeOption
from services.conductor.demand import Demand
from services.conductor.knowledge import Knowledge
from services.conductor.match import Match
from services.conductor.prefills import Candidate, PrefillOption
from services.conductor.reuse import Reuse, Step
from services.conductor.sources import Sources
from services.conductor.topology import distance


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run the request."""

    prefill: PrefillOption
    decode: DecodeOption
    handoff_s: float  # from the first token to KV complete at the decode; 0: colocated
    cost_s: float

    @property
    def ttft_s(self) -> float:
        """The prefill samples the first token itself, so the hand-over is no part of it."""
        return self.prefill.ttft_s

    @property
    def colocated(self) -> bool:
        return self.prefill.member is self.decode.member


@dataclass(frozen=True, slots=True)
class View:
    """One request and everybody who could run it."""

    demand: Demand
    match: Match
    sources: Sources
    candidates: Sequence[Candidate]  # prefills, in order of id
    decodes: Sequence[DecodeOption]  # those included that lack something
    know: Knowledge
    rotation: int  # settles ties: one more with each request
    now_s: float

    def able(self) -> list[DecodeOption]:
        """Decodes that lack nothing."""
        return [option for option in self.decodes if not option.lacks]

    def computed_s(self, candidate: Candidate, blocks: int) -> float:
        """Seconds of compute at the candidate when the leading `blocks` need none."""
        member = candidate.member
        base_s = self.know.prefill.base(member.kind, *self.demand.split(blocks))
        return base_s * candidate.ratio

    def with_own_prefix(self, candidate: Candidate) -> PrefillOption:
        """The candidate with what is in its own pool, and nothing fetched."""
        blocks = candidate.have_blocks
        compute_s = self.computed_s(candidate, blocks)
        owner = OwnerId(candidate.member.id)
        steps = [Step(0, blocks, owner, "hbm", 0.0, 0.0)] if blocks else []
        return self.option(candidate, Reuse(blocks, 0, 0.0, compute_s, compute_s), steps)

    def option(self, candidate: Candidate, reuse: Reuse, steps: list[Step]) -> PrefillOption:
        """The candidate with a reuse that a policy worked out."""
        new, cached = self.demand.split(reuse.blocks)
        trusted = self.know.prefill.trusted(candidate.member.kind, new, cached)
        return PrefillOption(candidate, reuse, steps, candidate.queue_s, trusted)

    def pair(self, prefill: PrefillOption, decode: DecodeOption) -> Choice:
        """Both together: what the hand-over takes, and what all of it costs in seconds."""
        handoff_s = 0.0
        if prefill.member is not decode.member:
            source, target = prefill.member, decode.member
            size_bytes = max(0, self.demand.blocks - decode.have_blocks) * self.demand.block_bytes
            apart = distance(source.spot, target.spot)
            times = self.know.transfers.lead_and_all
            latency_s, moved_s = times(source.id, target.id, "hbm", apart, size_bytes)
            # Layers leave as they are made: only what the work does not cover is waited for.
            handoff_s = max(latency_s, moved_s - prefill.reuse.work_s)
        cost_s = prefill.ttft_s + prefill.price_s + handoff_s + HORIZON_TOKENS * decode.tbt_s
        return Choice(prefill, decode, handoff_s, cost_s)


class SchedulingPolicy(Protocol):
    """Chooses; changes nothing but its own dice."""

    def choose(self, view: View) -> Choice | None:
        """A way to run the request, late or not; None when no prefill and decode go together."""


def turns(
    options: Iterable[PrefillOption] | Iterable[DecodeOption], rotation: int
) -> dict[str, int]:
    """Whose turn it is among equals: ids in order, turned by `rotation`."""
    ids = sorted(option.member.id for option in options)
    return {id: (index - rotation) % len(ids) for index, id in enumerate(ids)}
