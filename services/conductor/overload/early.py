"""Early rejection: both pools' loads as they are when the request arrives.

The decode pool's load is what its mean decode would promise with this request in the batch now: the
look that decodes take after the prefill, taken before it. It comes one prefill too soon, so the
pools swing against each other: decodes full, nothing admitted, prefills idle, decodes drain,
everything admitted.
"""

from moonpool.messages.errors import ErrorInfo
from services.conductor.admission import late_refusal
from services.conductor.overload.base import Offer, full_refusal


class EarlyGate:
    """Refuses when the mean decode would be over its promise now."""

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        late = late_refusal(offer.demand, offer.choice, offer.know.prefill, offer.now_s)
        if late:
            return late
        total_s, batch = 0.0, 0.0
        for option in offer.decodes:
            load = option.member.load
            if load:
                context = load.context_tokens + offer.demand.prompt_tokens
                total_s += offer.step_s(option, load.running + 1, context)
                batch += load.running
        mean_s = total_s / len(offer.decodes)
        if mean_s <= offer.demand.slo_tbt_s or not batch:
            return None
        return full_refusal(offer, mean_s, batch / len(offer.decodes))
