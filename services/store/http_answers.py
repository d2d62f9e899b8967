"""What the HTTP face says: statuses of errors, and ranges as requests ask for them. Pure.

CallerError
├── NotThere      no node has the value
├── NameTaken     the name has a value already
├── BodyTooLarge  more bytes than a value may have, or than were announced
└── WrongRange    a range that lies outside the value
CapacityError
└── FaceBusy      other bodies take the memory there is
"""

import math
import re

from moonpool.messages.errors import Blame, CallerError, CapacityError, MoonpoolError

_STATUS = {
    "not_found": 404,
    "name_taken": 409,
    "body_too_large": 413,
    "value_too_large": 413,
    "object_too_large": 413,
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


class WrongRange(CallerError):
    code = "wrong_range"


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
        raise WrongRange(f"{header} is outside a value of {size_bytes} bytes")
    return start, end
