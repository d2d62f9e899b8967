"""Ours: is what this request may bring worth what it keeps others from?

Its chance: every request accepted before joins the chosen decode when its own prefill is predicted
to end, and stays as long as answers of its tenant do. That gives the mean and the spread of the
batch that this one would join, and so how likely it is to find room within the promise.

Its price: while prompts wait, each second of prefill displaces others. A prompt of the usual size
costs as much of a completed request as the queue is long, measured by the promise; one ten times
as long costs ten times that.

A request whose chance is below its price is refused, and so is one that is more likely to break
the decode's promise than not. Where decodes look again when the KV is there and drop what does not
fit (the papers' do, ours do not), only the price counts: idle prefills may as well try, so that
decodes stay full. Under pressure the dearest prompts go first. No threshold is swung around by one
prefill's delay.
"""

import math

from moonpool.messages.errors import Blame, ErrorInfo
from services.conductor.admission import late_refusal
from services.conductor.overload.base import RETRY_MIN_S, Offer, full_refusal

CHANCE_MIN = 0.5  # where a decode keeps whoever it took, an answer too many slows all of them
_FADE = 0.01  # weight of one more request in the usual work


class OurGate:
    """Chance against price. Remembers nothing but how much work requests usually are."""

    def __init__(self, second_look: bool = False) -> None:
        """`second_look`: decodes drop what does not fit any more once it is prefilled."""
        self._chance_min = 0.0 if second_look else CHANCE_MIN
        self._usual_s = 0.0
        self._seen = 0

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        late = late_refusal(offer.demand, offer.choice, offer.know.prefill, offer.now_s)
        if late:
            return late
        price = self._price(offer)
        chance, tbt_s, sequences = _chance(offer)
        if chance >= max(self._chance_min, price):
            return None
        if chance < CHANCE_MIN:
            return full_refusal(offer, tbt_s, sequences)
        wait_s = offer.choice.prefill.wait_s
        return ErrorInfo(
            "ttft",
            Blame.CAPACITY,
            f"{wait_s:.2f} s of prompts wait on {offer.choice.prefill.member.id}, and this one, "
            f"{offer.choice.prefill.reuse.work_s:.2f} s of work, would displace {price:.1f} others",
            retry_after_s=max(RETRY_MIN_S, wait_s),
        )

    def _price(self, offer: Offer) -> float:
        """Requests that its prefill displaces."""
        work_s = offer.choice.prefill.reuse.work_s
        self._seen += 1
        self._usual_s += max(_FADE, 1.0 / self._seen) * (work_s - self._usual_s)
        if not offer.choice.prefill.trusted:
            return 0.0
        pressure = min(1.0, offer.choice.prefill.wait_s / offer.demand.slo_ttft_s)
        return pressure * work_s / max(1e-9, self._usual_s)


def _chance(offer: Offer) -> tuple[float, float, float]:
    """(how likely the decode keeps its promise with this request, its time between tokens then,
    the answers beside this one), all when the request would join."""
    decode = offer.choice.decode
    member, load = decode.member, decode.member.load
    assert load is not None, "an option has reported"
    expected = offer.ledger.expected(
        member.id, offer.first_s, offer.now_s, max(1e-6, decode.tbt_s), offer.lengths
    )
    # Who is in the batch now is known from its report: those of other conductors leave like ours,
    # and ours that ended unheard of count no more. Others' on their way are taken to be alike too.
    scale = load.running / expected.now if expected.now >= 1 else 1.0
    strangers = load.running if expected.now < 1 else 0
    coming = expected.sequences - expected.staying
    sequences = scale * expected.staying + max(1.0, scale) * coming + strangers
    shown = sequences - strangers
    context = expected.context_tokens * shown / max(1e-9, expected.sequences)
    context += load.context_tokens if strangers else 0
    context += offer.demand.prompt_tokens
    tbt_s = offer.step_s(decode, sequences + 1, context) + decode.delayed_s
    trusted = offer.know.steps.trusted(member.kind, sequences + 1, 0.0)
    if not trusted or sequences < 1:
        return 1.0, tbt_s, sequences
    typical = context / (sequences + 1)
    more_s = offer.step_s(decode, sequences + 2, context + typical) + decode.delayed_s - tbt_s
    spread_s = more_s * math.sqrt(max(1.0, scale) * expected.variance + 0.25)
    room = (offer.demand.slo_tbt_s - tbt_s) / max(1e-9, spread_s)
    return 0.5 * math.erfc(-room / math.sqrt(2.0)), tbt_s, sequences
