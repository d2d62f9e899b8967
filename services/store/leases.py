"""Leases: promises to readers that a place is not reused until they are done or out of time."""

from dataclasses import dataclass

from services.store.deadlines import Deadlines
from services.store.errors import TooManySessions
from services.store.objects import StoredObject


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    expires_s: float
    objects: list[StoredObject]  # each held once per mention, head first


class Leases:
    """Open leases. Whoever takes one out must let its objects go."""

    def __init__(self, leases_max: int) -> None:
        self._leases_max = leases_max
        self._open: dict[int, Lease] = {}
        self._deadlines: Deadlines[int] = Deadlines()
        self._last_id = 0

    def require_room(self) -> None:
        """Raises TooManySessions when no further lease can be given."""
        if len(self._open) >= self._leases_max:
            raise TooManySessions("leases", self._leases_max)

    def open(self, objects: list[StoredObject], expires_s: float) -> int:
        """Id of a new lease; ids are never used twice."""
        self._last_id += 1
        self._open[self._last_id] = Lease(self._last_id, expires_s, objects)
        self._deadlines.add(self._last_id, expires_s)
        return self._last_id

    def find(self, lease_id: int) -> Lease | None:
        """None when it ended before, or never was."""
        return self._open.get(lease_id)

    def close(self, lease_id: int) -> Lease | None:
        """Takes a lease out; None when it ended before, or never was."""
        lease = self._open.pop(lease_id, None)
        if lease is not None:
            self._deadlines.remove(lease_id, lease.expires_s)
        return lease

    def pop_due(self, now_s: float) -> list[Lease]:
        return [self._open.pop(lease_id) for lease_id in self._deadlines.pop_due(now_s)]

    def __len__(self) -> int:
        return len(self._open)

    def held(self) -> list[StoredObject]:
        """All that is held, once per hold."""
        return [obj for lease in self._open.values() for obj in lease.objects]

    def check(self) -> None:
        """Asserts that open leases and deadlines agree."""
        assert len(self._deadlines) == len(self._open) <= self._leases_max
        assert all(lease.objects for lease in self._open.values())
