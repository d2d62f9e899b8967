"""Reading a request's body within bounds of size and time."""

import asyncio

from starlette.requests import Request

from services.gateway.core.errors import BadInput

BODY_TIMEOUT_S = 60.0  # for the whole body; a client that sends slower is let go


async def read_all(request: Request, max_bytes: int) -> bytes:
    """The body. Raises BadInput (413, 408) without holding more than `max_bytes`, or
    ClientDisconnect. What the client still sends then is discarded by the server."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size_bytes += len(part)
                if size_bytes > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError as error:
        raise BadInput(
            "the body did not arrive in time", code="body_timeout", status=408
        ) from error
    return b"".join(parts)


def _too_large(max_bytes: int) -> BadInput:
    return BadInput(
        f"the body is larger than {max_bytes} bytes", code="request_too_large", status=413
    )
