"""prefill, decode -> gateway: the answer as it grows (`mp.tokens.<request>`)."""

import msgspec

from moonpool.messages.errors import ErrorInfo
from moonpool.messages.ids import InstanceId, RequestId


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities at one output position, before temperature and penalties."""

    chosen: float
    top_ids: tuple[int, ...] = ()  # likeliest first
    top: tuple[float, ...] = ()


class Timings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds spent per stage, sent once by each instance with its first event."""

    queue_s: float = 0.0
    fetch_s: float = 0.0  # waiting for reused blocks, beyond what overlapped with compute
    compute_s: float = 0.0
    transfer_s: float = 0.0  # from last layer computed to decode's acceptance


class TokenEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens `[index, index + len(tokens))` of the output; or the end; or an error.

    The gateway takes an event only when `attempt` is current and `index` is the next it expects, so
    nothing is repeated or dropped whatever fails over.
    """

    request: RequestId
    attempt: int
    index: int  # of tokens[0] in the whole output, earlier attempts included
    source: InstanceId
    tokens: tuple[int, ...] = ()
    finish: str = ""  # "", "stop" (end token), "length", "cancelled", "error"
    error: ErrorInfo | None = None  # with finish "error"; `elsewhere`: continue on another instance
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token when asked for
    # Tokens of the prompt that were not computed, by tier they came from; with the first event.
    cached_tokens: dict[str, int] | None = None
    timings: Timings | None = None
