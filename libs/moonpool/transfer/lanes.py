"""Which of the waiting jobs runs next: foreground strictly first, yet nobody starves. Pure."""

from collections import deque
from typing import Generic, TypeVar

from moonpool.transfer.base import Priority

T = TypeVar("T")


class Lanes(Generic[T]):
    """Two queues. A background job that waited `promote_after_s` goes first, but at most one for
    every `foreground_per_promoted` foreground jobs, so that a backlog cannot turn the order around.
    Not thread-safe."""

    def __init__(self, *, promote_after_s: float = 0.1, foreground_per_promoted: int = 4) -> None:
        self._foreground: deque[T] = deque()
        self._background: deque[tuple[float, T]] = deque()
        self._promote_after_s = promote_after_s
        self._foreground_per_promoted = foreground_per_promoted
        self._since_promoted = foreground_per_promoted

    def __len__(self) -> int:
        return len(self._foreground) + len(self._background)

    def put(self, item: T, priority: Priority, now_s: float) -> None:
        if priority is Priority.FOREGROUND:
            self._foreground.append(item)
        else:
            self._background.append((now_s, item))

    def put_back(self, item: T, priority: Priority, now_s: float) -> None:
        """First of its lane again: it was taken, and could not be started."""
        if priority is Priority.FOREGROUND:
            self._foreground.appendleft(item)
        else:
            self._background.appendleft((now_s, item))

    def take(self, now_s: float, *, background: bool = True) -> T | None:
        """The next job, None when nothing waits that may go: no `background`, only the
        foreground."""
        if not background or not self._background:
            return self._foreground.popleft() if self._foreground else None
        if not self._foreground or self._promote(now_s):
            self._since_promoted = 0
            return self._background.popleft()[1]
        self._since_promoted += 1
        return self._foreground.popleft()

    def take_foreground(self, now_s: float) -> T | None:
        """The next job if it is one of the foreground."""
        if not self._foreground or (self._background and self._promote(now_s)):
            return None
        self._since_promoted += 1
        return self._foreground.popleft()

    def remove(self, item: T) -> bool:
        """False when it does not wait. Looks at all that do."""
        if item in self._foreground:
            self._foreground.remove(item)
            return True
        for index, (_, each) in enumerate(self._background):
            if each == item:
                del self._background[index]
                return True
        return False

    def drain(self) -> list[T]:
        """Everything that waits, in order; empties the lanes."""
        items = [*self._foreground, *(item for _, item in self._background)]
        self._foreground.clear()
        self._background.clear()
        return items

    def _promote(self, now_s: float) -> bool:
        waited_s = now_s - self._background[0][0]
        return (
            waited_s >= self._promote_after_s
            and self._since_promoted >= self._foreground_per_promoted
        )
