"""Prediction as in the paper: the decode pool's load at the time the prefill would end.

Of all requests known, those whose prefill will be done by then have joined, spread evenly over the
decodes; those that will have decoded for longer than t_d have left. t_d is one number for all
requests and was never published. Who is known to have ended is no longer counted, so whatever is
older than t_d and still counted is taken to leave too soon: with the mean answer's time as t_d more
than a third of a batch seems gone at once, and the mode refuses too little too late. Three means,
which one answer in twenty outlives, refuse fewest.
"""

from moonpool.messages.errors import ErrorInfo
from services.conductor.admission import late_refusal
from services.conductor.overload.base import Offer, full_refusal

T_D_MEANS = 3.0  # t_d, in mean answers at the pace of now


class PredictedGate:
    """Refuses when the mean decode will be over its promise then."""

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        late = late_refusal(offer.demand, offer.choice, offer.know.prefill, offer.now_s)
        if late:
            return late
        at_s, decodes = offer.first_s, len(offer.decodes)
        mean_tokens = offer.lengths.mean_tokens()
        decoding_s = T_D_MEANS * mean_tokens * _pace_s(offer)
        there, context = 0, 0.0
        for entry in offer.ledger:
            if entry.first_s <= at_s < entry.first_s + decoding_s:
                there += 1
                context += entry.prompt_tokens + 0.5 * mean_tokens
        context = context / decodes + offer.demand.prompt_tokens
        total_s = 0.0
        for option in offer.decodes:
            total_s += offer.step_s(option, there / decodes + 1, context)
        mean_s = total_s / decodes
        if mean_s <= offer.demand.slo_tbt_s or not there:
            return None
        return full_refusal(offer, mean_s, there / decodes)


def _pace_s(offer: Offer) -> float:
    """Seconds per token of the mean decode with its batch of now."""
    total_s = 0.0
    for option in offer.decodes:
        load = option.member.load
        if load:
            total_s += offer.step_s(option, load.running, load.context_tokens)
    return total_s / len(offer.decodes)
