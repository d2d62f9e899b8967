"""The store seam: any bytes by name. `StoreClient` keeps them in a mesh, `MemoryStore` in memory.

Both pass one contract suite. A store is a cache: what is not pinned may be gone at any time.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from moonpool.bus import NoResponder
from moonpool.client.errors import BadName
from moonpool.kv.named import NAME_MAX_BYTES
from moonpool.messages import MoonpoolError
from moonpool.messages.store import ListedName
from moonpool.transfer.base import Region

Value = bytes | bytearray | memoryview
Place = tuple[Region, int]  # registered memory, and where in it the bytes begin

VALUE_MAX_BYTES = 1 << 30
SOFT_PIN_S = 1800.0
PIN_KINDS = ("soft", "hard", "none")


@dataclass(frozen=True, slots=True)
class GetResult:
    """A value, or why there is none; neither is a miss."""

    value: bytes | None = None
    error: MoonpoolError | None = None

    @property
    def is_telling(self) -> bool:
        """More than a miss. A node that is gone is as good as one: its bytes went with it."""
        return self.value is not None or not isinstance(self.error, NoResponder | None)

    def unwrap(self) -> bytes | None:
        """The value or None. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class Copies:
    """Where a value lies. `parts` is empty when the value lies whole beside its entries."""

    size_bytes: int
    entries: list[str]  # nodes that answer for the name
    parts: list[list[str]]  # per stripe: nodes that hold it

    @property
    def nodes(self) -> list[str]:
        """Nodes that hold all of the value."""
        if not self.parts:
            return self.entries
        first, *others = self.parts
        return [node for node in first if all(node in each for each in others)]


class Store(Protocol):
    """Names are text of 1 to 512 bytes in UTF-8; values have 0 to 2^30 bytes. Every method raises
    BadName and, on a mesh, NoNodes and what bus, nodes and transfer raise."""

    async def put(
        self, name: str, value: Value, *, replace: bool = False, replicas: int = 1
    ) -> bool:
        """Stores a value; False when the name is taken and `replace` is not set. To readers a
        replaced value is the old or the new one. Raises NoSpace, ValueTooLarge, PutFailed."""

    async def put_many(
        self, values: Mapping[str, Value], *, replace: bool = False, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]:
        """Per name what `put` would return or raise."""

    async def upsert(self, name: str, value: Value, *, replicas: int = 1) -> None:
        """`put` that replaces."""

    async def upsert_many(
        self, values: Mapping[str, Value], *, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]: ...

    async def put_from(
        self,
        name: str,
        region: Region,
        offset: int,
        size_bytes: int,
        *,
        replace: bool = False,
        replicas: int = 1,
    ) -> bool:
        """`put` of bytes in registered memory, with no copy on this side. Raises BadRange and
        RegionClosed besides."""

    async def get(self, name: str) -> bytes | None:
        """The value, verified; None when it is nowhere. Raises CorruptValue (the node is told and
        drops it), LeaseLost, StillLoading."""

    async def get_many(self, names: Iterable[str]) -> dict[str, GetResult]:
        """Per name what `get` would return or raise."""

    async def get_range(self, name: str, start: int, length: int) -> bytes | None:
        """`value[start : start + length]`, its chunks verified: shorter at the value's end. Raises
        BadRange when `start` is beyond it, and what `get` raises."""

    async def get_range_many(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, GetResult]:
        """Per name a (start, length) of its own."""

    async def get_into(
        self, name: str, region: Region, offset: int = 0, room_bytes: int | None = None
    ) -> int | None:
        """Reads a value into registered memory with no copy between; its length, or None when it is
        nowhere. Raises TargetTooSmall, BadRange, RegionClosed, and what `get` raises: what then
        stands there is void."""

    async def get_into_many(
        self, targets: Mapping[str, tuple[Region, int, int]]
    ) -> dict[str, int | MoonpoolError | None]:
        """Per name (region, offset, bytes of room); what `get_into` would return or raise."""

    def view(self, name: str) -> AbstractAsyncContextManager[memoryview | None]:
        """The value where it lies, verified, read-only and with no copy, on a node of our own host;
        elsewhere a copy. For a look of seconds, inside the block: LeaseLost at its end when it
        lasted too long for what was seen to count. Raises what `get` raises."""

    def register(self, buffer: object) -> Region:
        """A caller's writable memory, for `get_into` and `put_from`; `unregister` it afterwards."""

    def allocate(self, size_bytes: int) -> Region:
        """New registered memory."""

    async def exists(self, name: str) -> bool:
        """Whether it can be read now; not counted as a use."""

    async def exist_many(self, names: Iterable[str]) -> dict[str, bool]: ...

    async def size(self, name: str) -> int | None:
        """Bytes of the value; None when it is nowhere."""

    async def size_many(self, names: Iterable[str]) -> dict[str, int | None]: ...

    async def remove(self, name: str) -> bool:
        """Whether it was there. Pinned hard, it stays: unpin it first."""

    async def remove_many(self, names: Iterable[str]) -> dict[str, bool]: ...

    async def remove_prefix(self, prefix: str) -> int:
        """Removes all own names that begin with it; how many there were."""

    async def pin(self, name: str, kind: str = "soft", *, ttl_s: float = SOFT_PIN_S) -> bool:
        """soft: goes last, for `ttl_s`; hard: never goes; none: unpinned. False when it is nowhere,
        or beyond a quota; then all of it stays as it was."""

    async def pin_many(
        self, names: Iterable[str], kind: str = "soft", *, ttl_s: float = SOFT_PIN_S
    ) -> dict[str, bool]: ...

    async def unpin(self, name: str) -> bool:
        """Whether it is there."""

    async def unpin_many(self, names: Iterable[str]) -> dict[str, bool]: ...

    async def secure(self, name: str) -> bool:
        """As an fsync: True when a crash of its nodes loses the value no more (it lies on a disk or
        in the bucket). False when no tier takes it in time, or it is nowhere."""

    async def secure_many(self, names: Iterable[str]) -> dict[str, bool]: ...

    def list_names(self, prefix: str = "") -> AsyncIterator[ListedName]:
        """Own names in order, each once."""

    async def count(self, prefix: str = "") -> int:
        """Own names that begin with `prefix`."""

    async def wipe(self) -> int:
        """Removes everything of the tenant, pinned or not; how many objects that were."""


def check_name(name: str) -> str:
    """The name itself. Raises BadName."""
    if not isinstance(name, str):
        raise BadName(f"a name is text, not {type(name).__name__}")
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise BadName(f"a name must be text that UTF-8 can hold: {error.reason}") from error
    if not 1 <= size_bytes <= NAME_MAX_BYTES:
        raise BadName(f"a name has 1 to {NAME_MAX_BYTES} bytes in UTF-8, not {size_bytes}")
    return name


def check_names(names: Iterable[str]) -> list[str]:
    """Each once, in order. Raises BadName."""
    return [check_name(name) for name in dict.fromkeys(names)]
