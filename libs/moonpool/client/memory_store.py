"""A `Store` in this process's memory: for tests, and for programs that run without a mesh."""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from moonpool.client.base import (
    PIN_KINDS,
    SOFT_PIN_S,
    VALUE_MAX_BYTES,
    GetResult,
    Value,
    check_name,
    check_names,
)
from moonpool.client.errors import BadRange, NoSpace, TargetTooSmall, ValueTooLarge
from moonpool.client.places import check_place, check_range, part_of, view_of
from moonpool.client.plain_region import PlainRegion
from moonpool.messages import CallerError, MoonpoolError
from moonpool.messages.store import ListedName
from moonpool.transfer.base import Region


@dataclass(slots=True)
class _Kept:
    value: bytes
    pin: str = "none"
    soft_until_s: float = 0.0


class MemoryStore:
    """Holds at most `capacity_bytes` and evicts what was used least recently, pinned softly last
    and hard never. One thread."""

    def __init__(
        self, capacity_bytes: int = 1 << 30, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._evictions = 0

    async def put(
        self, name: str, value: Value, *, replace: bool = False, replicas: int = 1
    ) -> bool:
        check_name(name)
        view = view_of(name, value)
        if replicas < 1:
            raise CallerError(f"{replicas} replicas")
        if view.nbytes > min(VALUE_MAX_BYTES, self._capacity_bytes):
            raise ValueTooLarge(f"{view.nbytes} bytes; {self._capacity_bytes} are possible")
        old = self._kept.get(name)
        if old is not None and not replace:
            return False
        room_bytes = view.nbytes - (len(old.value) if old is not None else 0)
        self._make_room(room_bytes, name)
        kept = _Kept(view.tobytes())
        if old is not None:
            kept.pin, kept.soft_until_s = old.pin, old.soft_until_s
        self._kept[name] = kept
        self._kept.move_to_end(name)
        self._bytes += room_bytes
        return True

    async def put_many(
        self, values: Mapping[str, Value], *, replace: bool = False, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]:
        check_names(values)
        out: dict[str, bool | MoonpoolError] = {}
        for name, value in values.items():
            try:
                out[name] = await self.put(name, value, replace=replace, replicas=replicas)
            except (ValueTooLarge, NoSpace) as error:
                out[name] = error
        return out

    async def upsert(self, name: str, value: Value, *, replicas: int = 1) -> None:
        await self.put(name, value, replace=True, replicas=replicas)

    async def upsert_many(
        self, values: Mapping[str, Value], *, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]:
        return await self.put_many(values, replace=True, replicas=replicas)

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
        part = part_of(region, offset, size_bytes)
        return await self.put(name, part, replace=replace, replicas=replicas)

    async def get(self, name: str) -> bytes | None:
        kept = self._kept.get(check_name(name))
        if kept is None:
            return None
        self._kept.move_to_end(name)
        return kept.value

    async def get_many(self, names: Iterable[str]) -> dict[str, GetResult]:
        return {name: GetResult(await self.get(name)) for name in check_names(names)}

    async def get_range(self, name: str, start: int, length: int) -> bytes | None:
        check_range(start, length)
        value = await self.get(name)
        if value is not None and start > len(value):
            raise BadRange(f"{name!r} has {len(value)} bytes, none from {start} on")
        return None if value is None else value[start : start + length]

    async def get_range_many(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, GetResult]:
        for name, (start, length) in ranges.items():
            check_name(name)
            check_range(start, length)
        out: dict[str, GetResult] = {}
        for name, (start, length) in ranges.items():
            try:
                out[name] = GetResult(await self.get_range(name, start, length))
            except BadRange as error:
                out[name] = GetResult(error=error)
        return out

    async def get_into(
        self, name: str, region: Region, offset: int = 0, room_bytes: int | None = None
    ) -> int | None:
        room_bytes = region.length - offset if room_bytes is None else room_bytes
        check_place(region, offset, room_bytes)
        value = await self.get(name)
        if value is None:
            return None
        if len(value) > room_bytes:
            raise TargetTooSmall(f"{len(value)} bytes of {name!r} into {room_bytes}")
        region.view[offset : offset + len(value)] = value
        return len(value)

    async def get_into_many(
        self, targets: Mapping[str, tuple[Region, int, int]]
    ) -> dict[str, int | MoonpoolError | None]:
        for name, place in targets.items():
            check_name(name)
            check_place(*place)
        out: dict[str, int | MoonpoolError | None] = {}
        for name, place in targets.items():
            try:
                out[name] = await self.get_into(name, *place)
            except TargetTooSmall as error:
                out[name] = error
        return out

    @asynccontextmanager
    async def view(self, name: str) -> AsyncIterator[memoryview | None]:
        value = await self.get(name)
        yield None if value is None else memoryview(value)

    def register(self, buffer: object) -> Region:
        return PlainRegion(buffer)

    def allocate(self, size_bytes: int) -> Region:
        return PlainRegion(bytearray(size_bytes))

    async def exists(self, name: str) -> bool:
        return check_name(name) in self._kept

    async def exist_many(self, names: Iterable[str]) -> dict[str, bool]:
        return {name: name in self._kept for name in check_names(names)}

    async def size(self, name: str) -> int | None:
        kept = self._kept.get(check_name(name))
        return None if kept is None else len(kept.value)

    async def size_many(self, names: Iterable[str]) -> dict[str, int | None]:
        return {name: await self.size(name) for name in check_names(names)}

    async def remove(self, name: str) -> bool:
        kept = self._kept.get(check_name(name))
        if kept is None or kept.pin == "hard":
            return False
        self._drop(name)
        return True

    async def remove_many(self, names: Iterable[str]) -> dict[str, bool]:
        return {name: await self.remove(name) for name in check_names(names)}

    async def remove_prefix(self, prefix: str) -> int:
        names = [name for name in self._kept if name.startswith(prefix)]
        return sum((await self.remove_many(names)).values())

    async def pin(self, name: str, kind: str = "soft", *, ttl_s: float = SOFT_PIN_S) -> bool:
        if kind not in PIN_KINDS:
            raise CallerError(f"a pin is one of {', '.join(PIN_KINDS)}, not {kind!r}")
        kept = self._kept.get(check_name(name))
        if kept is None:
            return False
        if kind != "soft" or kept.pin != "hard":  # a hard pin never turns soft
            kept.pin, kept.soft_until_s = kind, self._clock() + ttl_s
        return True

    async def pin_many(
        self, names: Iterable[str], kind: str = "soft", *, ttl_s: float = SOFT_PIN_S
    ) -> dict[str, bool]:
        return {name: await self.pin(name, kind, ttl_s=ttl_s) for name in check_names(names)}

    async def unpin(self, name: str) -> bool:
        return await self.pin(name, "none")

    async def unpin_many(self, names: Iterable[str]) -> dict[str, bool]:
        return await self.pin_many(names, "none")

    async def secure(self, name: str) -> bool:
        """It has no nodes that could crash: True for what is there."""
        return await self.exists(name)

    async def secure_many(self, names: Iterable[str]) -> dict[str, bool]:
        return await self.exist_many(names)

    async def list_names(self, prefix: str = "") -> AsyncIterator[ListedName]:
        for name in sorted(name for name in self._kept if name.startswith(prefix)):
            if name in self._kept:
                yield ListedName(name, len(self._kept[name].value))

    async def count(self, prefix: str = "") -> int:
        return sum(name.startswith(prefix) for name in self._kept)

    async def wipe(self) -> int:
        removed = len(self._kept)
        self._kept.clear()
        self._bytes = 0
        return removed

    def stats(self) -> dict[str, int]:
        return {"values": len(self._kept), "bytes": self._bytes, "evictions": self._evictions}

    def _make_room(self, need_bytes: int, name: str) -> None:
        """Raises NoSpace, and then nothing was evicted."""
        now_s = self._clock()
        loose = [n for n, kept in self._kept.items() if kept.pin != "hard" and n != name]
        loose.sort(key=lambda n: self._kept[n].pin == "soft" and self._kept[n].soft_until_s > now_s)
        lacking = self._bytes + need_bytes - self._capacity_bytes
        if lacking > sum(len(self._kept[n].value) for n in loose):
            raise NoSpace(f"no room for {need_bytes} bytes", retry_after_s=1.0)
        for victim in loose:
            if lacking <= 0:
                return
            lacking -= len(self._kept[victim].value)
            self._evictions += 1
            self._drop(victim)

    def _drop(self, name: str) -> None:
        self._bytes -= len(self._kept.pop(name).value)
