"""What can go wrong while a local mesh starts or stops, split by who has to act.

CallerError  ── MeshRefused      a port, flag, package or name: the text says what to change
CapacityError ─ MachineTooSmall  memory or disk
PeerError    ── ServiceFailed    a process ended or never became ready; its log's tail is in it
"""

from moonpool.messages.errors import CallerError, CapacityError, PeerError


class MeshRefused(CallerError):
    code = "mesh_refused"


class MachineTooSmall(CapacityError):
    code = "machine_too_small"


class ServiceFailed(PeerError):
    code = "service_failed"
