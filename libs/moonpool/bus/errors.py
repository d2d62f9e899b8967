"""Errors of the bus.

CallerError
├── BadServer         what was given as a server's address is none
└── PayloadTooLarge   no message of this size can travel; send less or use the transfer library
PeerError
├── NoResponder       nobody serves the subject: for one that names a process, proof of death
├── RequestTimeout    no reply in time: slow, stuck or cut off
├── BusUnavailable    no connection to the server, and no room to wait for one
└── BusClosed         this bus was closed
"""

from moonpool.messages.errors import CallerError, PeerError


class BadServer(CallerError):
    code = "bad_server"


class PayloadTooLarge(CallerError):
    code = "payload_too_large"

    def __init__(self, subject: str, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes to {subject}: at most {max_bytes} can travel")
        self.subject = subject
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class NoResponder(PeerError):
    code = "no_responder"

    def __init__(self, subject: str) -> None:
        super().__init__(f"nobody serves {subject}", elsewhere=True)
        self.subject = subject


class RequestTimeout(PeerError):
    code = "request_timeout"

    def __init__(self, subject: str, timeout_s: float) -> None:
        super().__init__(f"no reply from {subject} within {timeout_s:g} s", elsewhere=True)
        self.subject = subject
        self.timeout_s = timeout_s


class BusUnavailable(PeerError):
    code = "bus_unavailable"


class BusClosed(PeerError):
    code = "bus_closed"

    def __init__(self) -> None:
        super().__init__("the bus is closed")
