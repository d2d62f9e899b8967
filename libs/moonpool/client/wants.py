"""What is wanted of one value, and what became of it."""

from dataclasses import dataclass

from moonpool.client.base import GetResult, Place
from moonpool.client.entries import Entry
from moonpool.client.errors import BadRange, CorruptValue, StillLoading, TargetTooSmall
from moonpool.client.manifest import Manifest
from moonpool.client.spans import range_of
from moonpool.kv import BlockKey
from moonpool.kv.checksum import checksum_of
from moonpool.kv.named import Kind, read_trailer
from moonpool.messages import MoonpoolError
from moonpool.messages.store import GetSlot


@dataclass(slots=True)  # never changed; to freeze it would double the price of making it
class Want:
    """A value, or a range of it; into a caller's memory when there is some."""

    key: BlockKey
    name: str
    start: int = 0
    length: int | None = None
    into: Place | None = None
    room_bytes: int = 0  # in `into`

    def range_of(self, size_bytes: int) -> tuple[int, int]:
        """Raises BadRange, TargetTooSmall."""
        if self.start > size_bytes:
            raise BadRange(f"{self.name!r} has {size_bytes} bytes, none from {self.start} on")
        start, end = range_of(size_bytes, self.start, self.length)
        if self.into is not None and end - start > self.room_bytes:
            raise TargetTooSmall(f"{end - start} bytes of {self.name!r} into {self.room_bytes}")
        return start, end


@dataclass(slots=True)  # never changed; to freeze it would double the price of making it
class Read:
    """What became of a Want: a miss when everything is empty."""

    value: bytes | None = None
    size_bytes: int = -1  # read into the caller's memory
    error: MoonpoolError | None = None
    manifest: tuple[Manifest, Entry] | None = None  # where to read on
    is_damaged: bool = False  # its bytes were here and are not what they should be

    @property
    def is_found(self) -> bool:
        return self.value is not None or self.size_bytes >= 0 or self.manifest is not None

    @property
    def is_settled(self) -> bool:
        """Whether nobody else need be asked."""
        return self.is_found or isinstance(self.error, BadRange | TargetTooSmall)

    def result(self) -> GetResult:
        return GetResult(self.value, self.error)


MISS = Read()


def at_once(node: str, slot: GetSlot, want: Want) -> Read | None:
    """What the answer itself says; None: the bytes are to be read."""
    data = slot.data
    if slot.status == "miss":
        return MISS
    if slot.status == "loading" or not data:
        return Read(error=StillLoading(f"{want.name!r} is on its way on {node}: ask again"))
    if len(data) != slot.size_bytes:
        return None
    if checksum_of(data) != slot.checksums:
        error = CorruptValue(f"{want.name!r} on {node} is damaged")
        return Read(error=error, is_damaged=True)
    trailer = read_trailer(data, slot.size_bytes)
    try:
        if trailer is None:
            raise CorruptValue(f"{want.name!r} on {node} is no value")
        if trailer.kind is Kind.MANIFEST:
            entry = Entry(node, slot)
            manifest = entry.manifest()
            if manifest is not None:
                return Read(manifest=(manifest, entry))
        start, end = want.range_of(trailer.value_bytes)
    except MoonpoolError as error:
        return Read(error=error)
    if want.into is None:
        return Read(data[start:end])
    region, at = want.into
    region.view[at : at + end - start] = data[start:end]
    return Read(size_bytes=end - start)
