"""Builders of what members of a mesh say of themselves."""

from moonpool.messages.registry import Heartbeat, Registration


def make_registration(
    id: str = "n1", role: str = "store", epoch: str = "e1", started_unix_s: float = 1.0
) -> Registration:
    return Registration(
        id=id,
        role=role,
        epoch=epoch,
        started_unix_s=started_unix_s,
        host_id="h",
        version="0.1.0",
    )


def make_heartbeat(
    id: str = "n1",
    role: str = "store",
    epoch: str = "e1",
    started_unix_s: float = 1.0,
    state: str = "ready",
) -> Heartbeat:
    return Heartbeat(make_registration(id, role, epoch, started_unix_s), state)
