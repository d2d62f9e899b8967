"""What a client is told when something is wrong: OpenAI's nested error object, and its status.

ApiError                 status  type                    code
├── BadInput             400     invalid_request_error   per case, `param` names the field
├── NotFound             404     invalid_request_error   model_not_found, route_not_found
├── Refused              429     rate_limit_error        ttft, tbt, kv_space, quota, draining, busy
├── Unavailable          503     server_error            no_conductor, no_instances, ..
└── TooLate              504     server_error            deadline_exceeded
"""

import math
from typing import Any

from moonpool.messages.errors import Blame, ErrorInfo, MoonpoolError

REFUSAL_CODES = frozenset({"ttft", "tbt", "kv_space", "quota", "draining"})
_LATE_CODES = frozenset({"deadline", "deadline_exceeded"})
_AWAY_CODES = frozenset({"no_instances", "fingerprint_mismatch", "no_conductor"})
RETRY_AFTER_MIN_S = 1  # Retry-After counts whole seconds


class ApiError(MoonpoolError):
    """Ends a request. `status` is the HTTP status when nothing was sent yet."""

    blame = Blame.BUG

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str | None,
        param: str | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message, code=code or "", retry_after_s=retry_after_s)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """The error object as OpenAI's clients read it."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code or None,
            }
        }

    def headers(self) -> dict[str, str]:
        """`Retry-After` where the client may come back."""
        if self.status not in (429, 503):
            return {}
        return {"Retry-After": str(max(RETRY_AFTER_MIN_S, math.ceil(self.retry_after_s)))}


class BadInput(ApiError):
    blame = Blame.CALLER

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = "invalid_value",
        status: int = 400,
    ) -> None:
        super().__init__(status, message, kind="invalid_request_error", code=code, param=param)


class Unauthorized(ApiError):
    blame = Blame.CALLER

    def __init__(self, message: str) -> None:
        super().__init__(401, message, kind="invalid_request_error", code="invalid_api_key")


class NotFound(ApiError):
    blame = Blame.CALLER

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(404, message, kind="invalid_request_error", code=code, param=param)


class Refused(ApiError):
    """The mesh has no room or no time for it now."""

    blame = Blame.CAPACITY

    def __init__(self, message: str, *, code: str, retry_after_s: float = 0.0) -> None:
        super().__init__(
            429, message, kind="rate_limit_error", code=code, retry_after_s=retry_after_s
        )


class Unavailable(ApiError):
    """Nobody is there who could do it, or everybody who tried was lost."""

    blame = Blame.PEER

    def __init__(self, message: str, *, code: str, retry_after_s: float = 0.0) -> None:
        super().__init__(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)


class TooLate(ApiError):
    blame = Blame.CAPACITY

    def __init__(self, message: str) -> None:
        super().__init__(504, message, kind="server_error", code="deadline_exceeded")


class Internal(ApiError):
    """A broken invariant of ours; the log has the story."""

    blame = Blame.BUG

    def __init__(self, message: str = "the gateway failed; its log has the story") -> None:
        super().__init__(500, message, kind="server_error", code="internal")


def from_info(info: ErrorInfo) -> ApiError:
    """What the client is told about a peer's refusal or error."""
    if info.code == "unknown_model":
        return NotFound(info.message, code="model_not_found", param="model")
    if info.code in _AWAY_CODES:
        return Unavailable(info.message, code=info.code, retry_after_s=info.retry_after_s)
    if info.code in _LATE_CODES:
        return TooLate(info.message)
    if info.code in REFUSAL_CODES or info.blame is Blame.CAPACITY:
        return Refused(info.message, code=info.code, retry_after_s=info.retry_after_s)
    if info.blame is Blame.CALLER:
        return BadInput(info.message, code=info.code)
    return Unavailable(info.message, code=info.code, retry_after_s=info.retry_after_s)
