"""The admission seam: an offer (a request and the best way to run it) comes in, a refusal or None
goes out. What no instance can do at all was refused before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moonpool.messages.errors import Blame, ErrorInfo
from services.conductor.decodes import DecodeOption
from services.conductor.demand import Demand
from services.conductor.knowledge import Knowledge
from services.conductor.ledger import Ledger
from services.conductor.lengths import AnswerLengths
from services.conductor.policies import Choice
from services.conductor.punctual import Punctuality

ANSWER_TOKENS = 128  # taken as what is left of an answer when a place must come free
RETRY_MIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Offer:
    """The best way to run one request, and what is known around it."""

    demand: Demand
    choice: Choice
    decodes: Sequence[DecodeOption]
    know: Knowledge
    ledger: Ledger
    lengths: AnswerLengths
    punctual: Punctuality
    now_s: float

    @property
    def first_s(self) -> float:
        """When its prefill would end."""
        return self.now_s + self.choice.ttft_s

    @property
    def is_one_of_many(self) -> bool:
        """Whether other conductors send requests too."""
        return len(self.know.fleet.of_roles(("conductor",))) > 1

    def step_s(self, decode: DecodeOption, sequences: float, context_tokens: float) -> float:
        """Seconds between tokens at `decode` with such a batch."""
        member = decode.member
        return self.know.steps.seconds(member.kind, member.id, sequences, context_tokens)


class Gate(Protocol):
    """Refuses or does not; changes nothing."""

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        """Why the request shall not begin now, or None."""


def full_refusal(offer: Offer, tbt_s: float, sequences: float) -> ErrorInfo:
    """Decodes would be too slow."""
    decode = offer.choice.decode.member
    wait_s = tbt_s * ANSWER_TOKENS / max(1.0, sequences)
    return ErrorInfo(
        "tbt",
        Blame.CAPACITY,
        f"decode batches are full (tokens every {tbt_s:.3f} s predicted, promise: "
        f"{offer.demand.slo_tbt_s:g} s); {decode.id} is first to have room",
        retry_after_s=max(RETRY_MIN_S, wait_s),
    )
