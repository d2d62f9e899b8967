"""Advice: how many instances each side would need for what is asked lately, refusals included.

A prefill is needed for each second of compute asked per second; a decode for as many answers at
once as it can carry in time. Both are measured over the last minute or so, and kept below full.
"""

import math
from dataclasses import dataclass, field

from moonpool.kv import KEY_BYTES
from moonpool.messages.advice import AdviceReply, ModelAdvice, SideAdvice
from moonpool.messages.plan import PlanReply, PlanRequest
from services.conductor.core import ConductorCore
from services.conductor.fleet import INSTANCE_ROLES, Member

MEMORY_S = 60.0  # what was asked counts for about so long
PREFILL_FULL = 0.8  # seconds of compute per second that one prefill is planned for
DECODE_FULL = 0.9  # of what a decode can carry
PREFILL_CODES = frozenset({"ttft"})
DECODE_CODES = frozenset({"tbt", "kv_space"})
CONTEXT_TOKENS = 1024.0  # of an answer, while none runs
ANSWER_S = 10.0  # that one takes, while none was seen
_MODELS_MAX = 256
_SEARCH_MAX = 4096  # answers at once in one decode


class Rate:
    """Amount per second, older amounts fading. Time is handed in."""

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        self._memory_s = memory_s
        self._sum = 0.0
        self._at_s: float | None = None
        self._since_s = 0.0

    def add(self, amount: float, now_s: float) -> None:
        self._fade(now_s)
        self._sum += amount

    def per_s(self, now_s: float) -> float:
        """Young rates count from their first amount on."""
        if self._at_s is None:
            return 0.0
        self._fade(now_s)
        seen = -math.expm1(-max(1.0, now_s - self._since_s) / self._memory_s)
        return self._sum / (self._memory_s * seen)

    def _fade(self, now_s: float) -> None:
        if self._at_s is None:
            self._at_s = self._since_s = now_s
        self._sum *= math.exp(-max(0.0, now_s - self._at_s) / self._memory_s)
        self._at_s = max(self._at_s, now_s)


@dataclass(slots=True)
class _Asked:
    """What requests for one model asked for."""

    work: Rate = field(default_factory=Rate)  # seconds of prefill compute
    late: Rate = field(default_factory=Rate)  # requests refused for lack of prefill
    full: Rate = field(default_factory=Rate)  # requests refused for lack of decode


class Advisor:
    """Looks at what one conductor plans and knows. Changes nothing."""

    def __init__(self, core: ConductorCore, now_s: float) -> None:
        self._core = core
        self._start_s = now_s
        self._asked: dict[str, _Asked] = {}

    def note(self, request: PlanRequest, reply: PlanReply, now_s: float) -> None:
        """One request came, and this was the answer. Later attempts of one count once."""
        code = reply.refusal.code if reply.refusal else ""
        known = not code or code in PREFILL_CODES | DECODE_CODES
        if request.attempt or not known:
            return
        asked = self._asked.get(request.model)
        if asked is None:
            if len(self._asked) >= _MODELS_MAX:
                return
            asked = self._asked[request.model] = _Asked()
        asked.work.add(self._work_s(request, reply), now_s)
        asked.late.add(float(code in PREFILL_CODES), now_s)
        asked.full.add(float(code in DECODE_CODES), now_s)

    def _work_s(self, request: PlanRequest, reply: PlanReply) -> float:
        """Seconds of compute on the prefill that was chosen, or on a typical one."""
        members = self._serving(request.model, ("prefill", "both"))
        if not members:
            return 0.0
        member = members[0]
        blocks = len(request.keys) // KEY_BYTES
        if reply.plan:
            member = self._core.fleet.get(reply.plan.prefill) or member
            cached = reply.plan.runs[-1].end if reply.plan.runs else 0
        else:
            cached = self._core.holdings.match(request.keys).end
        per_block = member.model.block_tokens if member.model else 0
        cached_tokens = min(min(cached, blocks) * per_block, request.prompt_tokens - 1)
        new_tokens = request.prompt_tokens - cached_tokens
        return self._core.prefill.seconds(member.kind, member.id, new_tokens, cached_tokens)

    def advise(self, now_s: float, conductor: str = "") -> AdviceReply:
        """For every model that was asked for lately or is served."""
        served = {m.model.model for m in self._core.fleet.of_roles(INSTANCE_ROLES) if m.model}
        models = sorted(served | self._asked.keys())
        return AdviceReply(
            conductor,
            max(0.0, now_s - self._start_s),
            tuple(self._advice(model, now_s) for model in models),
        )

    def needs(self, model: str, now_s: float) -> tuple[float, float]:
        """(prefills, decodes) needed, as fractions of instances."""
        asked = self._asked.get(model, _Asked())
        peers = max(1, sum(m.role == "conductor" and m.health == "alive" for m in self._core.fleet))
        prefills = peers * asked.work.per_s(now_s) / PREFILL_FULL
        return prefills, self._decodes(model, peers * asked.full.per_s(now_s)) / DECODE_FULL

    def _advice(self, model: str, now_s: float) -> ModelAdvice:
        asked = self._asked.get(model, _Asked())
        prefills, decodes = self.needs(model, now_s)
        have = {side: len(self._serving(model, (side,))) for side in ("prefill", "decode", "both")}
        late, full = asked.late.per_s(now_s), asked.full.per_s(now_s)
        if have["both"]:
            # Those of one kind do their part; what is left falls to those that do both.
            left = max(0.0, prefills - have["prefill"]) + max(0.0, decodes - have["decode"])
            sides = [_side("colocated", have["both"], left, late + full)]
            for side, needed in (("prefill", prefills), ("decode", decodes)):
                if have[side]:
                    sides.append(_side(side, have[side], min(needed, float(have[side])), 0.0))
        else:
            sides = [
                _side("prefill", have["prefill"], prefills, late),
                _side("decode", have["decode"], decodes, full),
            ]
        return ModelAdvice(model, tuple(sides), _sentence(sides))

    def _serving(self, model: str, duties: tuple[str, ...]) -> list[Member]:
        return [
            member
            for member in self._core.fleet.of_roles(INSTANCE_ROLES)
            if member.can_serve()
            and member.model
            and member.model.model == model
            and member.duty in duties
        ]

    def _decodes(self, model: str, refused_per_s: float) -> float:
        """Answers under way and refused, over what one decode carries."""
        members = self._serving(model, ("decode", "both"))
        loads = [member.load for member in members if member.load]
        if not loads:
            return 1.0 if refused_per_s else 0.0
        running = sum(load.running for load in loads)
        context = sum(load.context_tokens for load in loads) / running if running else 0.0
        context = context or CONTEXT_TOKENS
        carried = [self._carries(member, context) for member in members if member.load]
        typical = max(1.0, sum(carried) / len(carried))
        accepted = sum(load.running + load.reserved for load in loads)
        return (accepted + refused_per_s * ANSWER_S) / typical

    def _carries(self, member: Member, context: float) -> float:
        """Answers at once within the promise, places and blocks."""
        load, steps = member.load, self._core.steps
        assert load is not None
        assert member.model is not None
        blocks = max(1.0, context / member.model.block_tokens)
        most = int(min(load.slots_total, load.blocks_total / blocks, _SEARCH_MAX))
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) >> 1
            step_s = steps.seconds(member.kind, member.id, middle, middle * context)
            if step_s <= self._core.policy.slo_tbt_s:
                low = middle
            else:
                high = middle - 1
        return float(max(1, low))


def _side(side: str, have: int, needed: float, refused_per_s: float) -> SideAdvice:
    wanted = max(1, math.ceil(needed - 1e-9))
    return SideAdvice(side, have, round(needed, 2), wanted - have, round(refused_per_s, 3))


def _sentence(sides: list[SideAdvice]) -> str:
    said = []
    for side in sides:
        if side.short > 0:
            said.append(f"add {side.short} {side.side}")
        elif side.short < 0:
            said.append(f"{-side.short} {side.side} to spare")
    return "; ".join(said) if said else "enough of everything"
