"""What the life of a request asks its shell to do, and how the shell answers."""

from dataclasses import dataclass

from moonpool.messages.decode import ReserveRequest
from moonpool.messages.ids import InstanceId
from moonpool.messages.plan import PlanRequest
from moonpool.messages.prefill import SubmitRequest
from moonpool.messages.tokens import TokenLogprobs
from services.gateway.core.errors import ApiError

PREFILL = "prefill"  # the door of prefill and colocated instances
DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Door:
    """One instance, and on which of its subjects it is spoken to."""

    side: str  # PREFILL or DECODE
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class AskPlan:
    """Answer with `Life.planned`."""

    message: PlanRequest
    delay_s: float = 0.0  # wait so long before asking


@dataclass(frozen=True, slots=True)
class AskReplan:
    """Is there a better place for a prompt that waits? Answer with `Life.replanned`, while tokens
    go on being taken."""

    message: PlanRequest


@dataclass(frozen=True, slots=True)
class AskWithdraw:
    """Take the prompt back if nothing of it has been computed. Answer with `Life.withdrawn`."""

    door: Door
    attempt: int


@dataclass(frozen=True, slots=True)
class AskReserve:
    """Answer with `Life.reserved`."""

    instance: InstanceId
    message: ReserveRequest


@dataclass(frozen=True, slots=True)
class AskSubmit:
    """Answer with `Life.submitted`."""

    instance: InstanceId
    message: SubmitRequest


@dataclass(frozen=True, slots=True)
class AskPing:
    """Is it alive? Answer with `Life.ponged`, while tokens go on being taken."""

    door: Door
    attempt: int


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Tell it to stop and free everything. Nobody waits for the answer."""

    door: Door
    attempt: int
    writer_stopped: bool  # to a decode: no prefill was ever asked, so nobody writes there


@dataclass(frozen=True, slots=True)
class Give:
    """New tokens of the answer, exactly once and in order."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The request is over. Nothing comes after it."""

    finish: str  # "stop", "length", "cancelled", "error"
    error: ApiError | None = None  # with finish "error"


Effect = (
    AskPlan | AskReplan | AskWithdraw | AskReserve | AskSubmit | AskPing | SendCancel | Give | End
)
