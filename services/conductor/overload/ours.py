"""Ours: the chosen decode's batch when this request would join it, answer by answer.

Every request accepted before joins when its own prefill is predicted to end, and stays as long as
answers of its tenant do: the chance that it is still there follows from what has already been
said and from the lengths learned. Nobody swings: what is on its way counts before it arrives, and
what will be over counts no more.
"""

import math

from moonpool.messages.errors import ErrorInfo
from services.conductor.admission import late_refusal
from services.conductor.overload.base import Offer, full_refusal

_MARGIN = 0.0  # deviations of the batch's size that are held in reserve


class OurGate:
    """Refuses when the chosen decode will be over its promise then."""

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        late = late_refusal(offer.demand, offer.choice, offer.know.prefill, offer.now_s)
        if late:
            return late
        decode = offer.choice.decode
        tbt_s, sequences = self._joined(offer)
        member = decode.member
        trusted = offer.know.steps.trusted(member.kind, sequences + 1, 0.0)
        if tbt_s <= offer.demand.slo_tbt_s or not trusted or sequences < 1:
            return None
        return full_refusal(offer, tbt_s, sequences)

    def _joined(self, offer: Offer) -> tuple[float, float]:
        """(seconds between tokens, answers beside this one) when the request joins."""
        decode = offer.choice.decode
        load = decode.member.load
        assert load is not None, "an option has reported"
        expected = offer.ledger.expected(
            decode.member.id, offer.first_s, offer.now_s, max(1e-6, decode.tbt_s), offer.lengths
        )
        # Other conductors' answers are in the report and not in our ledger: they leave alike.
        scale = max(1.0, load.running / expected.now) if expected.now >= 1 else 1.0
        strangers = load.running if expected.now < 1 else 0
        sequences = scale * expected.sequences + strangers
        sequences += _MARGIN * math.sqrt(expected.variance)
        context = scale * expected.context_tokens + (load.context_tokens if strangers else 0)
        context += offer.demand.prompt_tokens
        step_s = offer.step_s(decode, sequences + 1, context)
        return step_s + decode.delayed_s, sequences
