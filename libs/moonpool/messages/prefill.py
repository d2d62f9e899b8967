"""gateway -> prefill: compute this prompt (`mp.prefill.<id>.submit`, `.cancel`)."""

import msgspec

from moonpool.messages.decode import ReserveReply
from moonpool.messages.errors import ErrorInfo
from moonpool.messages.ids import RequestId, TenantId
from moonpool.messages.plan import Plan
from moonpool.messages.sampling import SamplingParams


class SubmitRequest(msgspec.Struct, frozen=True):
    """One prompt. On a continued answer the prompt ends with the tokens already given."""

    request: RequestId
    attempt: int  # 0, 1, ..: token events of an older attempt are void
    tenant: TenantId
    model: str
    fingerprint: bytes
    root: bytes  # of the key chain: keys of blocks that decode will complete follow from it
    keys: bytes  # packed keys of all full blocks of `tokens`
    tokens: bytes  # little-endian int32
    output_start: int  # tokens[output_start:] are output of earlier attempts; the rest is prompt
    sampling: SamplingParams
    plan: Plan
    reservation: ReserveReply | None  # of the decode; None: decode here (colocated)
    deadline_s: float  # from receipt: give up and free everything after it
    level: int = 1  # class of its priority: 0 high, 1 normal, 2 low
    weight: float = 1.0  # the tenant's share next to others'
    start_by_s: float = 0.0  # from receipt: refused (`ttft`) when not begun by then; 0: never


LEVELS = ("high", "normal", "low")  # names of the classes, by their level
WEIGHT_MAX = 1000.0
AGE_S = 15.0  # of waiting lift a prompt by one class


class SubmitReply(msgspec.Struct, frozen=True):
    """Accepted into the bounded queue, or refused (`elsewhere` says whether to ask another)."""

    refusal: ErrorInfo | None = None


class CancelRequest(msgspec.Struct, frozen=True):
    """Also on `mp.decode.<id>.cancel`. Cancelling what is not there is no error."""

    request: RequestId
    attempt: int
    # To a decode: nobody writes into the reserved blocks any more, so they can be freed at once.
    # The prefill says so when its last write is done; the gateway, when no prefill was ever asked.
    writer_stopped: bool = False
    only_waiting: bool = False  # to a prefill: leave it alone when anything of it was computed


class CancelReply(msgspec.Struct, frozen=True):
    """Of a request with `only_waiting`; other cancels are answered with nothing."""

    ended: bool  # it had not begun, and is over
