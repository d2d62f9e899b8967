"""Errors of a service's start and of its place in the mesh.

CallerError
├── RegistrationRefused   a conductor refused us: its message names both sides
├── InvalidKey            no API key, or one that nobody knows
└── PortTaken             a port that cannot be listened on
CapacityError
└── SnapshotExpired       the copy behind this page is gone: begin again with cursor 0
"""

from moonpool.messages.errors import CallerError, CapacityError, ErrorInfo


class RegistrationRefused(CallerError):
    """Starting again unchanged would be refused again."""

    code = "registration_refused"

    def __init__(self, refusal: ErrorInfo) -> None:
        super().__init__(refusal.message, code=refusal.code)
        self.refusal = refusal


class InvalidKey(CallerError):
    code = "invalid_api_key"


class PortTaken(CallerError):
    code = "port_taken"


class SnapshotExpired(CapacityError):
    code = "snapshot_expired"
