"""Ours: is what this request may bring worth what it keeps others from?

Its chance: every request accepted before joins the chosen decode when its own prefill is predicted
to end, and stays as long as answers of its tenant do. That gives the mean and the spread of the
batch that this one would join, and so how likely it is to find room within the promise.

Its price, in completed requests. While prompts wait, each second of prefill displaces others: a
prompt of the usual size costs as much as the queue is long, measured by the promise; one ten times
as long costs ten times that. While decodes are nearly full, so does each place in a batch: one
with twice the context of the usual slows the batch more and costs more. What a usual place costs
is learned: it rises while offers find decodes too full, and falls while they do not.

A request whose chance is below its price is refused; where decodes keep whoever they took, so is
one that is not nearly sure. Where they look again when the KV is there and drop what does not fit
(the papers' do, ours do not), a small chance is worth trying when the price is smaller still. Under
pressure the dearest requests go first, and what is refused is work that was not begun. No threshold
is swung around by one prefill's delay.
"""

import math
from dataclasses import dataclass

from moonpool.messages.errors import Blame, ErrorInfo
from services.conductor.admission import late_refusal
from services.conductor.overload.base import RETRY_MIN_S, Offer, full_refusal

CHANCE_MIN = 0.98  # where a decode keeps whoever it took, one too many slows all of them for long
AIM = 0.97  # of the promise, there: contexts grow after the last look
AIM_LOOKED = 0.98  # where decodes look again: less grows after it
_FADE = 0.01  # weight of one more request in the usual work
_FULL_SHARE = 0.02  # of offers' chances that may be lost to full decodes before places cost more
_STEP = 0.005  # by which one offer moves what a place costs
_PLACE_MAX = 4.0
_ROOMY = 0.65  # of the promise: a decode that fast has places for nothing
_LOOKS = 2  # at who joins later, the last among them
_EASED = 0.98  # what is left of a place's cost after one such offer


@dataclass(frozen=True, slots=True)
class _Prospect:
    """The chosen decode when the request would join it."""

    chance: float  # that it is no slower than the limit with this request
    tbt_s: float  # its time between tokens then
    sequences: float  # the answers beside this one
    places: float = 0.0  # what this one takes of the batch, in usual ones; 0: not known


class OurGate:
    """Chance against price. Remembers how much work requests usually are, and what places cost."""

    def __init__(self, second_look: bool = False) -> None:
        """`second_look`: decodes drop what does not fit any more once it is prefilled."""
        self._chance_min, self._aim = (0.0, AIM_LOOKED) if second_look else (CHANCE_MIN, AIM)
        self._usual_s = 0.0
        self._seen = 0
        self._place = 0.0  # what a usual place in a full decode costs

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        prefill_id = offer.choice.prefill.member.id
        late = late_refusal(
            offer.demand,
            offer.choice,
            offer.know.prefill,
            offer.now_s,
            offer.punctual.allowed,
            is_tried=offer.punctual.tries(prefill_id) > 0,
        )
        if late:
            return late
        prospect = _prospect(offer, self._aim * offer.demand.slo_tbt_s)
        work = self._work_price(offer)
        place = self._place_price(offer, prospect)
        if prospect.chance >= max(self._chance_min, work + place):
            return None
        if prospect.tbt_s > offer.demand.slo_tbt_s:
            return full_refusal(offer, prospect.tbt_s, prospect.sequences)
        if work + place < self._chance_min:
            return _unsure_refusal(offer, prospect)
        return _dear_refusal(offer, prospect, work, place)

    def _work_price(self, offer: Offer) -> float:
        """Requests that its prefill displaces."""
        work_s = offer.choice.prefill.reuse.work_s
        self._seen += 1
        self._usual_s += max(_FADE, 1.0 / self._seen) * (work_s - self._usual_s)
        if not offer.choice.prefill.trusted:
            return 0.0
        pressure = min(1.0, offer.choice.prefill.wait_s / offer.demand.slo_ttft_s)
        return pressure * work_s / max(1e-9, self._usual_s)

    def _place_price(self, offer: Offer, prospect: _Prospect) -> float:
        """Requests that its place in the batch displaces."""
        if prospect.tbt_s < _ROOMY * offer.demand.slo_tbt_s:
            self._place *= _EASED
            return 0.0
        moved = self._place + _STEP * (1.0 - prospect.chance - _FULL_SHARE)
        self._place = min(_PLACE_MAX, max(0.0, moved))
        return self._place * prospect.places


def _prospect(offer: Offer, limit_s: float) -> _Prospect:
    """The worst of: when it joins, and when those join who were accepted before and come later.
    They were promised a place among those known then, and this one may still be there."""
    first_s = offer.first_s
    later = offer.ledger.joining_after(offer.choice.decode.member.id, first_s)
    picked = {later[len(later) * part // _LOOKS - 1] for part in range(1, _LOOKS + 1) if later}
    prospects = [_prospect_at(offer, limit_s, at_s) for at_s in (first_s, *sorted(picked))]
    return min(prospects, key=lambda prospect: prospect.chance)


def _prospect_at(offer: Offer, limit_s: float, at_s: float) -> _Prospect:
    demand, decode = offer.demand, offer.choice.decode
    member, load = decode.member, decode.member.load
    assert load is not None, "an option has reported"
    token_s = max(1e-6, decode.tbt_s)
    expected = offer.ledger.expected(member.id, at_s, offer.now_s, token_s, offer.lengths)
    mine = offer.lengths.longer_than(demand.tenant, (at_s - offer.first_s) / token_s)
    # Who is in the batch now is known from its report: those of other conductors leave like ours,
    # and ours that ended unheard of count no more. Others' on their way are taken to be alike too.
    scale = load.running / expected.now if expected.now >= 1 else 1.0
    strangers = load.running if expected.now < 1 else 0
    coming = expected.sequences - expected.staying
    coming *= scale if scale > 1.0 and offer.is_one_of_many else 1.0
    sequences = scale * expected.staying + coming + strangers
    shown = sequences - strangers
    others = expected.context_tokens * shown / max(1e-9, expected.sequences)
    others += load.context_tokens if strangers else 0
    context = others + mine * demand.prompt_tokens
    step_s = offer.step_s(decode, sequences + mine, context)
    tbt_s = step_s + decode.delayed_s
    if sequences < 1:
        return _Prospect(1.0, tbt_s, sequences)
    usual = others / sequences
    more_s = offer.step_s(decode, sequences + mine + 1, context + usual) - step_s
    takes_s = step_s - offer.step_s(decode, sequences, others)
    spread_s = more_s * math.sqrt(max(1.0, scale) * expected.variance + 0.25)
    room = (limit_s - tbt_s) / max(1e-9, spread_s)
    chance = 0.5 * math.erfc(-room / math.sqrt(2.0))
    takes = max(0.0, takes_s / max(1e-9, more_s))
    stays = offer.lengths.relative(demand.prompt_tokens)
    return _Prospect(chance, tbt_s, sequences, takes * stays)


def _unsure_refusal(offer: Offer, prospect: _Prospect) -> ErrorInfo:
    """There may be room, or not: whom decodes took they keep, and one too many slows them all."""
    decode = offer.choice.decode.member
    return ErrorInfo(
        "tbt",
        Blame.CAPACITY,
        f"{decode.id} would write tokens every {prospect.tbt_s:.3f} s, and is only "
        f"{prospect.chance:.0%} sure to keep its promise of {offer.demand.slo_tbt_s:g} s",
        retry_after_s=max(RETRY_MIN_S, offer.choice.ttft_s),
    )


def _dear_refusal(offer: Offer, prospect: _Prospect, work: float, place: float) -> ErrorInfo:
    """There may be room, but for others it is worth more."""
    prefill, decode = offer.choice.prefill, offer.choice.decode.member
    if work >= place:
        return ErrorInfo(
            "ttft",
            Blame.CAPACITY,
            f"{prefill.wait_s:.2f} s of prompts wait on {prefill.member.id}, and this one, "
            f"{prefill.reuse.work_s:.2f} s of work, would displace {work:.1f} others",
            retry_after_s=max(RETRY_MIN_S, prefill.wait_s),
        )
    return ErrorInfo(
        "tbt",
        Blame.CAPACITY,
        f"{decode.id} is nearly full, and this prompt of {offer.demand.prompt_tokens} tokens, as "
        f"slow to decode as {prospect.places:.1f} usual ones, would displace {place:.1f} others",
        retry_after_s=max(RETRY_MIN_S, offer.choice.ttft_s),
    )
