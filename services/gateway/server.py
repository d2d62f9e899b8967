"""The gateway's HTTP server: one of ours, on the port that its settings name."""

import socket

from moonpool.runtime import http_server
from moonpool.runtime.errors import PortTaken
from moonpool.runtime.http_server import HttpServer

__all__ = ["HttpServer", "PortTaken", "listen"]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises PortTaken, which names both."""
    return http_server.listen(host, port, "MOONPOOL_HTTP_HOST and MOONPOOL_HTTP_PORT")
