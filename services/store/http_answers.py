"""What the HTTP face says: statuses of errors, and ranges as requests ask for them. Pure.

CallerError
├── NotThere      no node has the value
├── NameTaken     the name has a value already
├── BodyTooLarge  more bytes than a value may have, or than were announced
├── BodyLate      a body that comes too slowly, or not at all
├── BodyCut       its sender is gone
├── NotText       a name or a prefix that is no UTF-8
└── WrongRange    a range that lies outside the value
CapacityError
└── FaceBusy      other bodies take the memory there is
"""

import math
import re
from urllib.parse import unquote_to_bytes

from moonpool.messages.errors import Blame, CallerError, CapacityError, MoonpoolError

_STATUS = {
    "not_found": 404,
    "name_taken": 409,
    "body_too_large": 413,
    "value_too_large": 413,
    "object_too_large": 413,
    "body_timeout": 408,
    "wrong_range": 416,
    "bad_range": 416,
    "invalid_api_key": 401,
}
_BY_BLAME = {Blame.CALLER: 400, Blame.CAPACITY: 503, Blame.PEER: 503}
_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)")


class NotThere(CallerError):
    code = "not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"no node has {name!r}")


class NameTaken(CallerError):
    code = "name_taken"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} has a value already; ?replace=true puts it anew")


class BodyTooLarge(CallerError):
    code = "body_too_large"

    def __init__(self, size_max_bytes: int) -> None:
        super().__init__(f"at most {size_max_bytes} bytes are taken")


class BodyLate(CallerError):
    code = "body_timeout"

    def __init__(self) -> None:
        super().__init__("the body did not arrive in time")


class BodyCut(CallerError):
    code = "body_cut"

    def __init__(self) -> None:
        super().__init__("the body ends before its end")


class NotText(CallerError):
    code = "bad_name"

    def __init__(self) -> None:
        super().__init__("names are UTF-8, percent-encoded; this is not")


class WrongRange(CallerError):
    code = "wrong_range"

    def __init__(self, header: str, size_bytes: int) -> None:
        super().__init__(f"{header} is outside a value of {size_bytes} bytes")
        self.size_bytes = size_bytes


class FaceBusy(CapacityError):
    code = "busy"

    def __init__(self) -> None:
        super().__init__("other values are on their way: try again", retry_after_s=1.0)


def status_of(error: MoonpoolError) -> int:
    """The HTTP status that an error becomes."""
    return _STATUS.get(error.code) or _BY_BLAME.get(error.blame, 500)


def whole_seconds(retry_after_s: float) -> int:
    """For Retry-After, which has no fractions."""
    return max(1, math.ceil(retry_after_s))


def headers_of(error: MoonpoolError) -> dict[str, str]:
    """What goes with the status besides the body."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if status == 503:
        headers["Retry-After"] = str(whole_seconds(error.retry_after_s))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, WrongRange):
        headers["Content-Range"] = f"bytes */{error.size_bytes}"
    if isinstance(error, BodyLate):
        headers["Connection"] = "close"  # what may still come is not waited for
    return headers


def require_text(path: bytes, query: bytes) -> None:
    """Frameworks put a question mark in place of what is no UTF-8: two names would be one. Raises
    NotText."""
    try:
        unquote_to_bytes(path).decode()
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        raise NotText from None


def read_window(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """[start, end) that a Range header asks for; None: everything, which is also the answer to
    what is no single range of bytes. Raises WrongRange."""
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last so many
        start, end = max(0, size_bytes - int(found[2])), size_bytes
    else:
        start = int(found[1])
        end = min(int(found[2]) + 1, size_bytes) if found[2] else size_bytes
    if start >= end:
        raise WrongRange(found[0], size_bytes)
    return start, end
