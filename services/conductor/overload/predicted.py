"""Prediction as in the paper: the decode pool's load at the time the prefill would end.

Of all requests known, those whose prefill will be done by then have joined, spread evenly over the
decodes; those that will have decoded for longer than t_d have left. t_d is one number for all
requests: here the mean that was seen. It was never published.
"""

from moonpool.messages.errors import ErrorInfo
from services.conductor.admission import late_refusal
from services.conductor.overload.base import Offer, full_refusal


class PredictedGate:
    """Refuses when the mean decode will be over its promise then."""

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        late = late_refusal(offer.demand, offer.choice, offer.know.prefill, offer.now_s)
        if late:
            return late
        at_s, decodes = offer.first_s, len(offer.decodes)
        pace_s = sum(option.tbt_s for option in offer.decodes) / decodes
        decoding_s = offer.lengths.mean_tokens() * pace_s
        there = context = 0
        for entry in offer.ledger:
            if entry.first_s <= at_s < entry.first_s + decoding_s:
                there += 1
                context += entry.prompt_tokens
        total_s = 0.0
        for option in offer.decodes:
            total_s += offer.step_s(option, there / decodes + 1, context / decodes)
        mean_s = total_s / decodes
        if mean_s <= offer.demand.slo_tbt_s or not there:
            return None
        return full_refusal(offer, mean_s, there / decodes)
