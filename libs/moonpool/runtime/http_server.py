"""uvicorn inside our process: our signals, our logging, our end."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from moonpool.runtime.errors import PortTaken

KEEP_ALIVE_S = 75  # longer than usual balancers keep theirs
BACKLOG = 2048


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the service's business."""
        yield


def listen(host: str, port: int, variables: str) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises PortTaken, which names both, and the
    `variables` where they are set."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PortTaken(
            f"cannot listen on {host} port {port} ({_reason(error)}): set {variables}"
        ) from error
    # Connections inherit it. Without it each small write after the first waits 40 ms for an
    # acknowledgement; asyncio sets it only on sockets that name their protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _reason(error: OSError) -> str:
    """In the system's words; failed look-ups of a name have their own."""
    known = error.errno is not None and error.errno > 0
    return os.strerror(error.errno) if known and error.errno is not None else str(error)


class HttpServer:
    """`run` serves until `stop` has been called and connections have ended."""

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        self._listener = listener
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # we say what starts and ends
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=None,
            )
        )

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def run(self) -> None:
        await self._server.serve(sockets=[self._listener])

    async def stop(self, serving: "asyncio.Task[None]", grace_s: float) -> None:
        """No new connections; requests under way get `grace_s`, then they are cut off."""
        self._server.should_exit = True
        await asyncio.wait({serving}, timeout=grace_s)
        self._server.force_exit = True
        await asyncio.wait({serving}, timeout=1.0)
        if not serving.done():
            serving.cancel()
            await asyncio.wait({serving})

    def stats(self) -> dict[str, int]:
        return {"connections": len(self._server.server_state.connections)}
