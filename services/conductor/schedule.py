"""The schedule: which prefill and which decode give the earliest good answer, in seconds.

Candidates are single instances (colocated) and pairs. A pair costs its time to first token, the
hand-over that delays the second, and a few dozen tokens at its decode's pace, so that a fast start
on a crowded decode does not win. Costs within a whisker of the best are equal and take turns.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from moonpool.messages.ids import OwnerId
from services.conductor.bandwidth import TransferPredictor
from services.conductor.decodes import HORIZON_TOKENS, DecodeOption, decode_option
from services.conductor.demand import Demand
from services.conductor.fleet import Fleet, Member
from services.conductor.holdings import Holdings
from services.conductor.match import Match
from services.conductor.picks import Picks
from services.conductor.predict import Predictor
from services.conductor.prefills import Candidate, PrefillOption, prefill_options, queue_s
from services.conductor.senders import Senders
from services.conductor.sources import Sources

_PAIRED_MAX = 8  # best prefills that are tried with every decode
_EQUAL_SHARE = 0.02  # costs this close to the best are equal
_EQUAL_S = 1e-3


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


@dataclass(slots=True)
class Outlook:
    """The best way there is, if any, and what stood in the way of others."""

    choice: Choice | None = None
    prefills: int = 0  # that could compute the prompt
    decodes: list[DecodeOption] = field(default_factory=list)
    too_small: list[Member] = field(default_factory=list)  # pools that can never hold the prompt


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that choices rest on; owned by the core."""

    fleet: Fleet
    holdings: Holdings
    prefill: Predictor
    steps: Predictor
    transfers: TransferPredictor
    picks: Picks
    senders: Senders


class Scheduler:
    """Chooses; changes nothing."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._know = knowledge

    def outlook(
        self, demand: Demand, match: Match, members: Iterable[Member], now_s: float, rotation: int
    ) -> Outlook:
        """The best choice among `members` that can serve. `rotation` settles ties."""
        know = self._know
        outlook = Outlook()
        lengths = match.lengths()
        candidates: list[Candidate] = []
        for member in members:
            bit = know.holdings.bit(OwnerId(member.id), "hbm")
            have = lengths.get(bit, 0)
            waits_s = 0.0
            if member.role != "decode":
                waits_s = queue_s(member, know.prefill, know.picks, now_s)
                if member.load and member.load.blocks_total >= demand.blocks:
                    ratio = know.prefill.ratio(member.id)
                    candidates.append(Candidate(member, bit, have, waits_s, ratio))
                elif member.load:
                    outlook.too_small.append(member)
            if member.role != "prefill":
                option = decode_option(member, demand, have, waits_s, know.steps, know.picks)
                if option:
                    outlook.decodes.append(option)
        outlook.prefills = len(candidates)
        sources = self._sources(match, demand, now_s, rotation)
        options = prefill_options(candidates, demand, sources, match.end, know.prefill, rotation)
        outlook.choice = self._best(demand, options, outlook.decodes, rotation)
        return outlook

    def _sources(self, match: Match, demand: Demand, now_s: float, rotation: int) -> Sources:
        know = self._know

        def host_of(owner: str) -> str:
            member = know.fleet.get(owner)
            return member.host if member else ""

        return Sources(
            match,
            know.holdings.index.places.of,
            host_of,
            lambda owner: know.senders.wait_s(owner, now_s),
            know.transfers,
            demand.block_bytes,
            rotation,
        )

    def _best(
        self,
        demand: Demand,
        prefills: list[PrefillOption],
        decodes: list[DecodeOption],
        rotation: int,
    ) -> Choice | None:
        """The cheapest in time; else the one that is least late. None: no able pair or single."""
        able = [option for option in decodes if not option.lacks]
        choices = self._choices(demand, prefills, able)
        in_time = [choice for choice in choices if choice.ttft_s <= demand.slo_ttft_s]
        if not in_time:
            return min(choices, key=lambda choice: choice.ttft_s, default=None)
        limit_s = _equal_limit(min(choice.cost_s for choice in in_time))
        turns = _turns(prefills, rotation) | _turns(able, rotation)

        def order(choice: Choice) -> tuple[int, int, int]:
            reuse = choice.prefill.reuse
            own_blocks = reuse.blocks - reuse.fetched_blocks
            return -own_blocks, turns[choice.prefill.member.id], turns[choice.decode.member.id]

        return min((choice for choice in in_time if choice.cost_s <= limit_s), key=order)

    def _choices(
        self, demand: Demand, prefills: list[PrefillOption], able: list[DecodeOption]
    ) -> list[Choice]:
        """Singles and pairs, but for pairs that cannot come near the best in time."""
        by_id = {option.member.id: option for option in able}
        apart = [option for option in able if option.member.role == "decode"]
        apart.sort(key=lambda option: option.tbt_s)
        choices = [
            self._choice(demand, prefill, by_id[prefill.member.id])
            for prefill in prefills
            if prefill.member.id in by_id
        ]
        split = [option for option in prefills if option.member.role == "prefill"]
        split.sort(key=lambda option: option.ttft_s)
        in_time = (choice.cost_s for choice in choices if choice.ttft_s <= demand.slo_ttft_s)
        limit_s = _equal_limit(min(in_time, default=math.inf))
        for prefill in split[:_PAIRED_MAX]:
            for decode in apart:
                if prefill.ttft_s + HORIZON_TOKENS * decode.tbt_s > limit_s:
                    break  # and every later decode is slower still
                choice = self._choice(demand, prefill, decode)
                choices.append(choice)
                if choice.ttft_s <= demand.slo_ttft_s:
                    limit_s = min(limit_s, _equal_limit(choice.cost_s))
        return choices

    def _choice(self, demand: Demand, prefill: PrefillOption, decode: DecodeOption) -> Choice:
        handoff_s = 0.0
        if prefill.member is not decode.member:
            source, target = prefill.member, decode.member
            size_bytes = max(0, demand.blocks - decode.have_blocks) * demand.block_bytes
            near = source.host == target.host
            moved_s = self._know.transfers.seconds(source.id, target.id, "hbm", near, size_bytes)
            # Layers leave as they are made: only what the work does not cover is waited for.
            latency_s = self._know.transfers.seconds(source.id, target.id, "hbm", near, 0)
            handoff_s = max(latency_s, moved_s - prefill.reuse.work_s)
        cost_s = prefill.ttft_s + handoff_s + HORIZON_TOKENS * decode.tbt_s
        return Choice(prefill, decode, handoff_s, cost_s)


def _equal_limit(cost_s: float) -> float:
    """Up to where costs count as equal to `cost_s`."""
    return cost_s * (1.0 + _EQUAL_SHARE) + _EQUAL_S


def _turns(
    options: Iterable[PrefillOption] | Iterable[DecodeOption], rotation: int
) -> dict[str, int]:
    """Whose turn it is among equals: ids in order, turned by `rotation`."""
    ids = sorted(option.member.id for option in options)
    return {id: (index - rotation) % len(ids) for index, id in enumerate(ids)}
