"""What readers over a line share: the question, what a slot says by itself, and room for bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from moonpool.client.base import Place
from moonpool.client.borrowing import fresh
from moonpool.client.wants import Read, Want, at_once
from moonpool.kv import pack_keys
from moonpool.kv.named import TRAILER_BYTES
from moonpool.messages.keyed import KeyedGet
from moonpool.messages.store import INLINE_MAX_BYTES, GetSlot
from moonpool.transfer import LocalRegion
from moonpool.transfer.lines import Line

PAYLOAD_MAX_BYTES = 64 << 20  # of one answer


def question(wants: Sequence[Want], lease_s: float = 0.0) -> KeyedGet:
    starts: list[int] = []
    lengths: list[int] = []
    if any(want.start or want.length is not None for want in wants):
        starts = [want.start for want in wants]
        lengths = [-1 if want.length is None else want.length for want in wants]
    keys = pack_keys([want.key for want in wants])
    return KeyedGet(
        keys, PAYLOAD_MAX_BYTES, INLINE_MAX_BYTES, TRAILER_BYTES, 0, starts, lengths, lease_s
    )


def settled(node: str, slot: GetSlot, want: Want) -> Read | None:
    """What the slot itself says, unless the bus should be asked what is behind it."""
    read = at_once(node, slot, want)
    return None if read is None or (read.error is not None and not read.is_settled) else read


class Room:
    """For a value: in its caller's memory, or bytes of its own."""

    def __init__(self, into: Place | None, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._is_own = into is None
        self._value: bytes | None = None
        if into is not None:
            region, at = into
            self.view = region.view[at : at + size_bytes]
        elif size_bytes > 1:
            self._value, self.view = fresh(size_bytes)
        else:
            self.view = memoryview(bytearray(size_bytes))

    def read(self) -> Read:
        """Once its bytes are there and verified."""
        if not self._is_own:
            return Read(size_bytes=self._size_bytes)
        return Read(bytes(self.view) if self._value is None else self._value)


@contextmanager
def entered(into: Place | None, line: Line) -> Iterator[None]:
    """A caller's region knows that bytes come to it: its `unregister` waits, and cuts the line if
    it must. Raises RegionClosed."""
    region = into[0] if into is not None else None
    if not isinstance(region, LocalRegion):
        yield
        return
    held = region.table.enter_local(region, line.close)
    try:
        yield
    finally:
        region.table.leave(held)
