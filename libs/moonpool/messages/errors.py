"""The root of every error tree in Moonpool, and how an error travels.

    MoonpoolError
    ├── CallerError      bad input or misuse: the same call will fail again; fix the call
    ├── PeerError        somebody we need is away, slow or broken: try elsewhere or later
    ├── CapacityError    no room or no time left for it: try later, `retry_after_s` says when
    ├── CorruptionError  bytes are not what was promised: dropped, never served; recompute
    └── BugError         a broken invariant of ours: report it

Each package's own `errors.py` derives from these. Numbers are attributes, texts say what to do.
"""

from enum import StrEnum

import msgspec


class Blame(StrEnum):
    """Who is to blame, and so who must act."""

    CALLER = "caller"
    PEER = "peer"
    CAPACITY = "capacity"
    CORRUPTION = "corruption"
    BUG = "bug"


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it travels between services."""

    code: str  # snake_case, stable: part of the contract
    blame: Blame
    message: str
    retry_after_s: float = 0.0  # >= 0; 0: unknown
    # True: the same request may succeed on another instance right now
    elsewhere: bool = False


class MoonpoolError(Exception):
    """Base of all. Subclasses set `blame` and a default `code`."""

    blame: Blame = Blame.BUG
    code: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after_s: float = 0.0,
        elsewhere: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.retry_after_s = retry_after_s
        self.elsewhere = elsewhere

    def info(self) -> ErrorInfo:
        return ErrorInfo(
            code=self.code,
            blame=self.blame,
            message=self.message,
            retry_after_s=self.retry_after_s,
            elsewhere=self.elsewhere,
        )


class CallerError(MoonpoolError):
    blame = Blame.CALLER
    code = "bad_request"


class PeerError(MoonpoolError):
    blame = Blame.PEER
    code = "peer_lost"


class CapacityError(MoonpoolError):
    blame = Blame.CAPACITY
    code = "no_capacity"


class CorruptionError(MoonpoolError):
    blame = Blame.CORRUPTION
    code = "corrupt"


class BugError(MoonpoolError):
    blame = Blame.BUG
    code = "internal"


_BY_BLAME: dict[Blame, type[MoonpoolError]] = {
    Blame.CALLER: CallerError,
    Blame.PEER: PeerError,
    Blame.CAPACITY: CapacityError,
    Blame.CORRUPTION: CorruptionError,
    Blame.BUG: BugError,
}


def error_from(info: ErrorInfo) -> MoonpoolError:
    """The exception that an `ErrorInfo` from a peer stands for."""
    return _BY_BLAME[info.blame](
        info.message, code=info.code, retry_after_s=info.retry_after_s, elsewhere=info.elsewhere
    )
