"""What callers and peers hand in, checked before anything is made of it. Pure.

A grant comes from a peer, and is no more to be trusted than what else comes from there.
"""

import math
import re
from collections.abc import Sequence
from operator import index
from typing import Any

from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer.base import Op, Priority
from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.topology import is_location
from moonpool.transfer.wire import EPOCH_BYTES, KEY_BYTES

NUMBERS_END = 1 << 63  # of offsets, lengths and regions on every wire
ENDPOINTS_MAX = 64  # of one grant
TEXT_MAX = 4096  # characters of an address
NAME_MAX = 69  # with what is put around it, as much as the address of a Unix socket holds
_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_MAX - 1}}}")


def check_name(name: object) -> None:
    """Of an engine, whose socket is called after it. Raises BadTransfer."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadTransfer(
            f"{_short(name)} is no name of an engine: 1 to {NAME_MAX} letters, digits, '_', '-' "
            "or '.', which does not come first"
        )


def check_start(
    name: object, host_id: object, listen_host: object, transports: Sequence[str]
) -> None:
    """What an engine is started with. Raises BadTransfer."""
    check_name(name)
    if not isinstance(host_id, str):
        raise BadTransfer(f"host_id {_short(host_id)} is no text")
    if not isinstance(listen_host, str) or not _can_be_hosts(listen_host):
        raise BadTransfer(f"listen_host {_short(listen_host)} is no address, like 127.0.0.1 or ::")
    if isinstance(transports, str) or len(set(transports)) != len(transports):
        raise BadTransfer(f"transports {_short(transports)} must be a list, each named once")


def _can_be_hosts(text: str) -> bool:
    hosts = [host.strip() for host in text.split(",") if host.strip()]
    try:
        return text.isprintable() and bool(hosts) and all(host.encode("idna") for host in hosts)
    except UnicodeError:
        return False


def check_location(location: object) -> None:
    """Of memory; "" is anywhere. Raises BadTransfer."""
    if not isinstance(location, str) or (location and not is_location(location)):
        raise BadTransfer(f'{_short(location)} is no location: "cpu:0", "cuda:0" or "" is')


def number(value: object, what: str) -> int:
    """As a plain int, when it is a whole number of any kind. Raises BadTransfer."""
    try:
        return int(index(value))  # type: ignore[arg-type]
    except TypeError as error:
        raise BadTransfer(f"{what} {_short(value)} is no whole number") from error


def seconds(value: Any, what: str, *, above_zero: bool = True) -> float:
    """As a plain float, when it is a finite span. Raises BadTransfer."""
    try:
        span = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        span = math.nan
    if not (0 < span < math.inf or (span == 0 and not above_zero)):
        least = "above 0" if above_zero else "0 or more"
        raise BadTransfer(f"{what} {_short(value)} must be seconds, {least} and finite")
    return span


def op_of(value: object) -> Op:
    """Raises BadTransfer."""
    try:
        return Op(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadTransfer(f"op {_short(value)} is neither READ nor WRITE") from error


def priority_of(value: object) -> Priority:
    """Raises BadTransfer."""
    try:
        return Priority(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadTransfer(f"priority {_short(value)} is none of {list(Priority)}") from error


def check_grant(grant: object) -> None:
    """That no field of it can stand in the way of others: what fits no frame would end in the
    middle of one. Raises BadTransfer."""
    if not isinstance(grant, RegionGrant):
        raise BadTransfer(f"{_short(grant)} is no grant")
    problem = _range_problem(grant) or _text_problem(grant)
    if problem:
        raise BadTransfer(f"a grant of {_short(grant.segment)} has {problem}")


def _range_problem(grant: RegionGrant) -> str:
    region, offset, length = grant.region, grant.offset, grant.length
    if not (type(region) is type(offset) is type(length) is int):
        return "a region, an offset or a length that is no whole number"
    if not 0 <= region < NUMBERS_END:
        return f"region {region}"
    if offset < 0 or length < 1 or offset + length > NUMBERS_END:
        return f"the range [{offset}, +{length})"
    if not isinstance(grant.key, bytes) or len(grant.key) != KEY_BYTES:
        return f"a key that is not of {KEY_BYTES} bytes"
    expires = grant.expires_unix_s
    if not isinstance(expires, int | float) or not math.isfinite(expires):
        return f"no moment to expire at: {_short(expires)}"
    return ""


def _text_problem(grant: RegionGrant) -> str:
    segment, epoch = grant.segment, grant.epoch
    if not (type(segment) is type(epoch) is type(grant.host_id) is type(grant.rights) is str):
        return "a name that is no text"
    if not _NAME.fullmatch(segment):
        return "an owner of no proper name"
    if not epoch.isascii() or not 0 < len(epoch) <= EPOCH_BYTES:
        return f"epoch {_short(epoch)}"
    ends = grant.endpoints
    if not isinstance(ends, list) or len(ends) > ENDPOINTS_MAX:
        return f"no list of at most {ENDPOINTS_MAX} endpoints"
    for end in ends:
        if found := _endpoint_problem(end):
            return found
    return ""


def _endpoint_problem(end: object) -> str:
    if not isinstance(end, Endpoint):
        return f"an endpoint {_short(end)}"
    for text in (end.transport, end.address, end.nic):
        if type(text) is not str or len(text) > TEXT_MAX or not text.isprintable():
            return f"an endpoint at {_short(text)}"
    if type(end.rank) is not int or not 0 <= end.rank < NUMBERS_END:
        return f"an endpoint of rank {_short(end.rank)}"
    return ""


def _short(value: object) -> str:
    """For a message: it may be long, and its `repr` may be anything."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
