"""The schedule: lays out who could compute a prompt and who could continue its answer, and lets a
policy choose among them. It gathers; `policies/` decide."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from moonpool.messages.ids import OwnerId
from services.conductor.decodes import DecodeOption, decode_option
from services.conductor.demand import Demand
from services.conductor.fleet import Member
from services.conductor.knowledge import Knowledge
from services.conductor.match import Match
from services.conductor.policies import Choice, SchedulingPolicy, View
from services.conductor.prefills import Candidate, Waiting
from services.conductor.sources import Sources

__all__ = ["Choice", "Knowledge", "Outlook", "Scheduler"]


@dataclass(slots=True)
class Outlook:
    """The best way there is, if any, and what stood in the way of others."""

    choice: Choice | None = None
    prefills: int = 0  # that could compute the prompt
    decodes: list[DecodeOption] = field(default_factory=list)
    too_small: list[Member] = field(default_factory=list)  # pools that can never hold the prompt


class Scheduler:
    """Chooses; changes nothing."""

    def __init__(self, knowledge: Knowledge, policy: SchedulingPolicy) -> None:
        self._know = knowledge
        self._policy = policy

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
            if member.duty != "decode":
                backlog = know.backlogs.of(member, know.prefill)
                waiting = Waiting(member.id, backlog, know.picks, now_s)
                waits_s = waiting.total_s()
                if member.load and member.load.blocks_total >= demand.blocks:
                    ratio = know.prefill.ratio(member.kind, member.id)
                    candidates.append(Candidate(member, bit, have, waits_s, ratio, waiting))
                elif member.load:
                    outlook.too_small.append(member)
            if member.duty != "prefill":
                option = decode_option(member, demand, have, waits_s, know.steps, know.picks)
                if option:
                    outlook.decodes.append(option)
        outlook.prefills = len(candidates)
        sources = self._sources(match, demand, now_s, rotation)
        view = View(demand, match, sources, candidates, outlook.decodes, know, rotation, now_s)
        outlook.choice = self._policy.choose(view)
        return outlook

    def _sources(self, match: Match, demand: Demand, now_s: float, rotation: int) -> Sources:
        know = self._know

        return Sources(
            match,
            know.holdings.index.places.of,
            know.fleet.spot,
            lambda owner: know.senders.wait_s(owner, now_s),
            know.transfers,
            demand.block_bytes,
            rotation,
        )
