"""Streams that were given up with frames on their way, and how their owner is kept from taking
these in later: what was written under a stream that nobody waits for any more may lie in memory
that holds something newer by then.

Every stream begins with its name. Whoever gave one up says so before the next frame that it sends
to the same owner, on whichever stream; the owner ends the one named, waits until its thread is out
of memory, and only then goes on. A name that it has not met yet it will not serve. Links of rdma
have such names too, and are ended like streams.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable

from moonpool.transfer.wire import KEY_BYTES, Frame, WireOp, check_of

FENCED_MAX = 4096  # names that an owner remembers
LEFT_MAX = 128  # streams given up that an owner has not been told of; the oldest are forgotten
OWNERS_MAX = 1024
FENCE_S = 5.0  # for a thread to leave memory once its stream was cut


def new_name() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def naming(name: bytes) -> bytes:
    """The frame that a stream begins with. Nothing answers it."""
    return _frame(WireOp.NAME, name)


def fencing(names: list[bytes]) -> bytes:
    """Frames to send before the next one. Nothing answers them."""
    return b"".join(_frame(WireOp.FENCE, name) for name in names)


def _frame(op: WireOp, name: bytes) -> bytes:
    return Frame(op, 1, 0, 0, 1, name, check_of(name), 1).pack()


class LeftBehind:
    """At whoever asks: the streams to one owner that were given up. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, name: bytes) -> None:
        with self._lock:
            self._names[name] = None
            while len(self._names) > LEFT_MAX:
                self._names.popitem(last=False)

    def names(self) -> list[bytes]:
        with self._lock:
            return list(self._names)

    def settled(self, names: list[bytes]) -> None:
        """The owner has answered something that it was told after these."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)


class Owners:
    """What was left behind at each owner, by its epoch. Belongs to the loop."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, LeftBehind] = OrderedDict()

    def left_at(self, epoch: str) -> LeftBehind:
        left = self._of.get(epoch)
        if left is None:
            left = self._of[epoch] = LeftBehind()
            while len(self._of) > OWNERS_MAX:
                self._of.popitem(last=False)
        return left


class Fences:
    """At the owner: which streams are served under which names. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._served: dict[bytes, Callable[[], None]] = {}  # how to cut each
        self._fenced: OrderedDict[bytes, None] = OrderedDict()

    def enter(self, name: bytes, cut: Callable[[], None]) -> bool:
        """A stream says its name; False when it must end: it was given up, or the name is taken."""
        with self._changed:
            if name in self._fenced or name in self._served:
                return False
            self._served[name] = cut
            return True

    def leave(self, name: bytes) -> None:
        """Its thread will touch memory no more."""
        with self._changed:
            self._served.pop(name, None)
            self._changed.notify_all()

    def fence(self, name: bytes, own: bytes, wait_s: float = FENCE_S) -> bool:
        """Returns when the stream `name` has ended; False when it has not in time, or `own`, the
        stream that asks, must end itself."""
        if name == own:
            return False
        with self._changed:
            self._fenced[name] = None
            while len(self._fenced) > FENCED_MAX:
                self._fenced.popitem(last=False)
            cut = self._served.get(name)
            if cut is not None:
                cut()
            self._changed.notify_all()
            self._changed.wait_for(lambda: name not in self._served or own in self._fenced, wait_s)
            return name not in self._served and own not in self._fenced
