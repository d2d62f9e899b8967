"""Decode options: where an answer could be continued, and how fast its tokens would come."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.conductor.demand import Demand
from services.conductor.fleet import Member
from services.conductor.picks import Picks
from services.conductor.predict import Predictor

# Tokens over which a slower decode is weighed against a later first token.
HORIZON_TOKENS = 32
_ANSWER_TOKENS = 128  # taken as the length of an answer when a place must come free
_RETRY_MIN_S = 0.5


@dataclass(frozen=True, slots=True)
class DecodeOption:
    """One instance that could decode, or why it cannot."""

    member: Member
    have_blocks: int  # leading blocks of the prompt in its own pool
    tbt_s: float  # predicted, with this request in the batch
    trusted: bool  # the prediction rests on samples
    delayed_s: float = 0.0  # of `tbt_s`, what prompts between its tokens cost (colocated)
    lacks: str = ""  # "", or the refusal code: "kv_space", "tbt"
    retry_after_s: float = 0.0  # when it lacks something; 0: waiting does not help


def decode_option(
    member: Member,
    demand: Demand,
    have_blocks: int,
    queue_s: float,
    steps: Predictor,
    picks: Picks,
) -> DecodeOption | None:
    """What `member` offers as a decode; None until its first load report. `queue_s` is prefill work
    that stands before its batch (colocated instances): it is done between our tokens."""
    load = member.load
    if load is None:
        return None
    pending = picks.pending(member.id)
    sequences = load.running + load.reserved + pending.slots
    context = load.context_tokens + pending.context_tokens + demand.prompt_tokens
    step_s = steps.seconds(member.kind, member.id, sequences + 1, context)
    delayed_s = queue_s / HORIZON_TOKENS
    tbt_s = step_s + delayed_s
    trusted = steps.trusted(member.kind, sequences + 1, context)
    # A place comes free when one of the running answers ends.
    retry_s = max(_RETRY_MIN_S, step_s * _ANSWER_TOKENS / max(1, sequences))
    lacks = ""
    if demand.blocks > load.blocks_total:
        lacks, retry_s = "kv_space", 0.0
    elif demand.blocks > load.blocks_free - pending.blocks + have_blocks:
        lacks = "kv_space"
    elif sequences >= load.slots_total:
        lacks = "tbt"
    retry_after_s = retry_s if lacks else 0.0
    return DecodeOption(member, have_blocks, tbt_s, trusted, delayed_s, lacks, retry_after_s)


def scarcest(options: Iterable[DecodeOption]) -> DecodeOption | None:
    """The option that lacks least: the one to name in a refusal. Waiting beats never."""
    lacking = [option for option in options if option.lacks]
    return min(
        lacking, key=lambda o: (o.retry_after_s == 0.0, o.retry_after_s, o.member.id), default=None
    )
