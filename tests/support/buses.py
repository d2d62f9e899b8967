"""What the bus suites share."""

from collections.abc import Awaitable, Callable

from moonpool.bus import Bus

MakeBus = Callable[[], Awaitable[Bus]]  # each hears the others of one test


async def echo(payload: bytes) -> bytes:
    return payload


async def length(payload: bytes) -> bytes:
    return str(len(payload)).encode()
