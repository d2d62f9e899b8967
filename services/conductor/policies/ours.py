"""Ours: the earliest good answer, in seconds, with fetch or recompute decided per candidate.

Candidates are single instances (colocated) and pairs. A pair costs its time to first token, the
hand-over that delays the second, and a few dozen tokens at its decode's pace, so that a fast start
on a crowded decode does not win. Costs within a whisker of the best are equal and take turns.
"""

import math

from services.conductor.decodes import HORIZON_TOKENS, DecodeOption
from services.conductor.policies.base import Choice, View, turns
from services.conductor.prefills import PrefillOption, prefill_options

_PAIRED_MAX = 8  # best prefills that are tried with every decode
_EQUAL_SHARE = 0.02
_EQUAL_S = 1e-3
PATIENCE = 2.0  # times its own work until a prompt's turn is due: short ones may overtake so long


class OurPolicy:
    """Least predicted seconds."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience

    def choose(self, view: View) -> Choice | None:
        """The cheapest in time; else the one that is least late."""
        options = prefill_options(
            view.candidates,
            view.demand,
            view.sources,
            view.match.end,
            view.know.prefill,
            view.rotation,
            self._patience,
        )
        able = view.able()
        choices = _choices(view, options, able)
        in_time = [choice for choice in choices if choice.ttft_s <= view.demand.slo_ttft_s]
        if not in_time:
            return min(choices, key=lambda choice: choice.ttft_s, default=None)
        limit_s = _equal_limit(min(choice.cost_s for choice in in_time))
        turn = turns(options, view.rotation) | turns(able, view.rotation)

        def order(choice: Choice) -> tuple[int, int, int]:
            reuse = choice.prefill.reuse
            own_blocks = reuse.blocks - reuse.fetched_blocks
            return -own_blocks, turn[choice.prefill.member.id], turn[choice.decode.member.id]

        return min((choice for choice in in_time if choice.cost_s <= limit_s), key=order)


def _choices(view: View, prefills: list[PrefillOption], able: list[DecodeOption]) -> list[Choice]:
    """Singles and pairs, but for pairs that cannot come near the best in time."""
    slo_ttft_s = view.demand.slo_ttft_s
    by_id = {option.member.id: option for option in able}
    apart = [option for option in able if option.member.duty == "decode"]
    apart.sort(key=lambda option: option.tbt_s)
    choices = [
        view.pair(prefill, by_id[prefill.member.id])
        for prefill in prefills
        if prefill.member.id in by_id
    ]
    split = [option for option in prefills if option.member.duty == "prefill"]
    split.sort(key=lambda option: option.ttft_s + option.price_s)
    in_time = (choice.cost_s for choice in choices if choice.ttft_s <= slo_ttft_s)
    limit_s = _equal_limit(min(in_time, default=math.inf))
    for prefill in split[:_PAIRED_MAX]:
        for decode in apart:
            if prefill.ttft_s + prefill.price_s + HORIZON_TOKENS * decode.tbt_s > limit_s:
                break  # and every later decode is slower still
            choice = view.pair(prefill, decode)
            choices.append(choice)
            if choice.ttft_s <= slo_ttft_s:
                limit_s = min(limit_s, _equal_limit(choice.cost_s))
    return choices


def _equal_limit(cost_s: float) -> float:
    """Up to where costs count as equal to `cost_s`."""
    return cost_s * (1.0 + _EQUAL_SHARE) + _EQUAL_S
