"""Admission: says no before any work is done, why, and when to try again.

Only predictions that rest on samples refuse. An idle instance that nobody heard numbers from for
a while gets a try, so that one bad measurement cannot shut the door for good.
"""

from collections.abc import Sequence

from moonpool.messages.errors import Blame, ErrorInfo
from services.conductor.decodes import scarcest
from services.conductor.demand import Demand
from services.conductor.fleet import Member
from services.conductor.predict import Predictor
from services.conductor.schedule import Choice, Outlook

RETRY_AWAY_S = 1.0  # nobody is there: a heartbeat later somebody may be
_IDLE_S = 0.05  # a queue shorter than this is none
_PROBE_AFTER_S = 10.0  # without a sample for so long, an idle instance is tried


def model_refusal(model: str, namesakes: Sequence[Member]) -> ErrorInfo:
    """No instance has the request's fingerprint. `namesakes` serve a model of that name."""
    if not namesakes:
        return ErrorInfo(
            "unknown_model", Blame.CALLER, f"no instance on this mesh serves model {model!r}"
        )
    ids = ", ".join(member.id for member in namesakes[:8])
    return ErrorInfo(
        "fingerprint_mismatch",
        Blame.CALLER,
        f"the gateway's {model!r} is not the {model!r} that {ids} serve: "
        "model files, dtype or block_tokens differ",
    )


def away_refusal(model: str, members: Sequence[Member], excluded: int) -> ErrorInfo:
    """Instances of the model are known, but none can be chosen now."""
    mismatched = next((member.mismatch for member in members if member.mismatch), "")
    if mismatched and all(member.mismatch for member in members):
        return ErrorInfo("fingerprint_mismatch", Blame.CALLER, mismatched)
    if all(member.state == "draining" for member in members):
        return ErrorInfo(
            "draining",
            Blame.CAPACITY,
            f"all {len(members)} instances of {model!r} are draining",
            retry_after_s=RETRY_AWAY_S,
        )
    tried = f" besides the {excluded} already tried" if excluded else ""
    return ErrorInfo(
        "no_instances",
        Blame.CAPACITY,
        f"none of the {len(members)} instances of {model!r} can take a request now{tried}",
        retry_after_s=RETRY_AWAY_S,
    )


def outlook_refusal(demand: Demand, outlook: Outlook) -> ErrorInfo:
    """Instances are there, but no way to run this request was found."""
    if outlook.too_small and not outlook.prefills:
        largest = max(m.load.blocks_total if m.load else 0 for m in outlook.too_small)
        return _never_fits(demand, largest)
    lacking = scarcest(outlook.decodes)
    if not outlook.prefills or lacking is None:
        missing = "decode" if outlook.prefills else "prefill"
        return ErrorInfo(
            "no_instances",
            Blame.CAPACITY,
            f"no {missing} instance is ready, and no colocated one",
            retry_after_s=RETRY_AWAY_S,
        )
    if lacking.lacks == "kv_space" and not lacking.retry_after_s:
        return _never_fits(demand, lacking.member.load.blocks_total if lacking.member.load else 0)
    reason = {
        "kv_space": f"no decode has {demand.blocks} free blocks",
        "tbt": f"decode batches are full (tokens every {lacking.tbt_s:.3f} s predicted)",
    }[lacking.lacks]
    return ErrorInfo(
        lacking.lacks,
        Blame.CAPACITY,
        f"{reason}; {lacking.member.id} is first to have room",
        retry_after_s=lacking.retry_after_s,
    )


def late_refusal(
    demand: Demand,
    choice: Choice,
    prefill: Predictor,
    now_s: float,
    allowed: float = 1.0,
    is_tried: bool = False,
) -> ErrorInfo | None:
    """Whether even the best choice would miss the promise of a first token, which is to hold when
    it comes after `allowed` times the prediction. `is_tried`: the instance has a prompt already of
    which nobody knows how long it takes, so until it is done guesses count as well."""
    member, waits_s = choice.prefill.member, choice.prefill.wait_s
    idle = waits_s < _IDLE_S
    allowed = 1.0 if idle else allowed  # there it displaces nobody, so it gets its chance
    late_s = allowed * choice.ttft_s - demand.slo_ttft_s
    if late_s <= 0 or not (choice.prefill.trusted or is_tried):
        return None
    unheard_s = now_s - prefill.last_sample_s(member.id)
    if idle and not is_tried and unheard_s > _PROBE_AFTER_S:
        return None
    over_s = choice.ttft_s - demand.slo_ttft_s / allowed
    # The queue drains by a second each second; the work does not, but a guess may be wrong.
    is_guess = not choice.prefill.trusted
    helps = is_guess or choice.ttft_s - waits_s <= demand.slo_ttft_s
    hint = "" if helps else ", which no waiting mends"
    spread = f" to {allowed * choice.ttft_s:.2f} s" if allowed > 1.0 else ""
    return ErrorInfo(
        "ttft",
        Blame.CAPACITY,
        f"the first token would take {choice.ttft_s:.2f}{spread or ' s'} on {member.id} (promise: "
        f"{demand.slo_ttft_s:g} s, queue: {waits_s:.2f} s){hint}",
        retry_after_s=max(RETRY_AWAY_S * is_guess, min(over_s, waits_s)) if helps else 0.0,
    )


def _never_fits(demand: Demand, blocks_total: int) -> ErrorInfo:
    return ErrorInfo(
        "kv_space",
        Blame.CALLER,
        f"the prompt needs {demand.blocks} KV blocks and the largest pool has {blocks_total}",
    )
