"""Puts under way: places handed out whose bytes are still on their way."""

from dataclasses import dataclass, field

from moonpool.kv import BlockKey
from services.store.deadlines import Deadlines
from services.store.errors import TooManySessions
from services.store.objects import State, StoredObject


@dataclass(slots=True)
class PutSession:
    id: int
    expires_s: float
    waiting: dict[BlockKey, StoredObject] = field(default_factory=dict)  # state WRITING


class Puts:
    """Open put sessions. One ends when nothing waits in it any more."""

    def __init__(self, puts_max: int) -> None:
        self._puts_max = puts_max
        self._open: dict[int, PutSession] = {}
        self._deadlines: Deadlines[int] = Deadlines()
        self._ended: list[int] = []
        self._last_id = 0

    def require_room(self) -> None:
        """Raises TooManySessions when no further put can be opened."""
        if len(self._open) >= self._puts_max:
            raise TooManySessions("puts", self._puts_max)

    def open(self, objects: list[StoredObject], expires_s: float) -> int:
        """Id of a new session over `objects`; ids are never used twice."""
        self._last_id += 1
        session = PutSession(self._last_id, expires_s, {obj.key: obj for obj in objects})
        self._open[session.id] = session
        self._deadlines.add(session.id, expires_s)
        return session.id

    def take(self, put: int, key: BlockKey, generation: int) -> StoredObject | None:
        """Takes one object out of its session; None when the session or this life of it is over."""
        session = self._open.get(put)
        obj = session.waiting.get(key) if session else None
        if session is None or obj is None or obj.generation != generation:
            return None
        del session.waiting[key]
        if not session.waiting:
            del self._open[put]
            self._deadlines.remove(put, session.expires_s)
            self._ended.append(put)
        return obj

    def pop_due(self, now_s: float) -> list[PutSession]:
        """What was never finished in time."""
        return [self._open.pop(put) for put in self._deadlines.pop_due(now_s)]

    def take_ended(self) -> list[int]:
        """Ids of sessions that ended in time since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def __len__(self) -> int:
        return len(self._open)

    def waiting(self) -> list[StoredObject]:
        return [obj for session in self._open.values() for obj in session.waiting.values()]

    def check(self) -> None:
        """Asserts that open sessions, deadlines and states agree."""
        assert len(self._deadlines) == len(self._open) <= self._puts_max
        for put, session in self._open.items():
            assert session.id == put
            assert session.waiting
        for obj in self.waiting():
            assert obj.state is State.WRITING
