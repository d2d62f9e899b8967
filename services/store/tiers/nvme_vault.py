"""The nvme tier's bytes: one preallocated segment file, read and written directly, and its index.

A record is written first and its index entry after it, so an entry always means a whole record;
the record carries its own header, so that even a wrong entry cannot make wrong bytes pass.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moonpool.kv.checksum import bad_chunks, chunk_checksums
from services.store.tiers.batch import Batch
from services.store.tiers.copied import Copied
from services.store.tiers.direct import Arenas, DirectFile, copy_bytes
from services.store.tiers.errors import (
    RecordDamaged,
    RecordMissing,
    VaultAway,
    VaultReadOnly,
    VaultRefused,
)
from services.store.tiers.huge import HugePages
from services.store.tiers.nvme_index import IndexFile
from services.store.tiers.record import (
    PAGE_BYTES,
    Facts,
    header_bytes,
    pack_header,
    round_up,
    unpack_header,
)
from services.store.tiers.vault import Item

THREADS = 8
ARENA_BYTES = 8 << 20
PIECE_BYTES = 2 << 20  # of a read in place
_REFUSALS = {
    errno.EACCES,
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EROFS,
}


class NvmeVault:
    """A `Vault` in one folder of its own, which it creates; one process at a time."""

    name = "nvme"
    is_local = True
    is_shared = False

    def __init__(self, folder: Path, bytes_total: int) -> None:
        self._folder = folder
        self._bytes_total = round_up(bytes_total - bytes_total % 4096)
        self._arenas: Arenas | None = None
        self._huge = HugePages()
        self._data: DirectFile | None = None
        self._index: IndexFile | None = None
        self._lock_fd = -1

    def open(self) -> Iterator[Batch]:
        self.close()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._data = DirectFile(self._folder / "segment.dat", self._bytes_total)
            self._index = IndexFile(self._folder / "index.dat")
            self._arenas = self._arenas or Arenas(THREADS, ARENA_BYTES)
            found = self._index.scan(self._bytes_total)
            self._try_direct()
        except (OSError, EOFError) as error:
            self.close()
            raise _refusal(error, self._folder) from error
        yield found

    def write(self, item: Item, checksums: bytes, payload: memoryview) -> None:
        facts = item.facts
        header = pack_header(facts, checksums)
        with self._opened() as (data, index, arenas), arenas.lend() as arena:
            arena[: len(header)] = header
            room = arena[len(header) :]
            if self._huge.ready(payload):
                _require(not bad_chunks(payload, facts.chunk_bytes, checksums), facts)
                self._write_in_place(data, item.place, len(header), arena, payload)
            elif payload.nbytes <= room.nbytes:
                copied = Copied(room[: payload.nbytes], facts.chunk_bytes)
                copied.add(payload)
                _require(copied.checksums() == checksums, facts)
                _write_padded(data, item.place, arena, len(header) + payload.nbytes)
            else:
                _require(not bad_chunks(payload, facts.chunk_bytes, checksums), facts)
                self._write_in_turns(data, item.place, len(header), arena, payload)
            data.sync()
            index.add(item)

    @staticmethod
    def _write_in_place(
        data: DirectFile, place: int, filled: int, arena: memoryview, payload: memoryview
    ) -> None:
        """`arena` begins with `filled` bytes that come before the payload; the payload's last,
        broken page goes by the arena too."""
        whole = payload.nbytes // PAGE_BYTES * PAGE_BYTES
        tail = _padded(arena[filled:], payload[whole:])
        data.write(place, arena[:filled], payload[:whole], tail)

    @staticmethod
    def _write_in_turns(
        data: DirectFile, place: int, filled: int, arena: memoryview, payload: memoryview
    ) -> None:
        """As `_write_in_place`, everything by the arena."""
        at, done = place, 0
        while done < payload.nbytes:
            part = min(payload.nbytes - done, arena.nbytes - filled)
            copy_bytes(arena[filled : filled + part], payload[done : done + part])
            at += _write_padded(data, at, arena, filled + part)
            done, filled = done + part, 0

    def read(self, item: Item, target: memoryview) -> bytes:
        facts = item.facts
        header_size = header_bytes(facts.size_bytes, facts.chunk_bytes)
        with self._opened() as (data, _, arenas), arenas.lend() as arena:
            if self._huge.ready(target):
                checksums, found = self._read_in_place(data, item, header_size, arena, target)
                is_sound = found == checksums
            else:
                copied = Copied(target, facts.chunk_bytes)
                checksums = self._read_in_turns(data, item, header_size, arena, copied)
                is_sound = copied.checksums() == checksums
        if not is_sound:
            raise RecordDamaged(f"{facts.key.hex()} is damaged on disk")
        return checksums

    @staticmethod
    def _read_in_place(
        data: DirectFile, item: Item, header_size: int, arena: memoryview, target: memoryview
    ) -> tuple[bytes, bytes]:
        """(checksums as stored, checksums of what was read). In pieces, each summed before the next
        pushes it out of the processor's cache. Header and the last, broken page go by the arena."""
        whole = target.nbytes // PAGE_BYTES * PAGE_BYTES
        chunk_bytes = item.facts.chunk_bytes
        header = arena[:header_size]
        tail = arena[header_size : header_size + round_up(target.nbytes - whole)]
        sums: list[bytes] = []
        place, before, summed = item.place, [header], 0
        for low in range(0, whole, PIECE_BYTES) or (0,):
            high = min(low + PIECE_BYTES, whole)
            after = [tail] if high == whole else []
            data.read(place, *before, target[low:high], *after)
            place += high - low + (header_size if before else 0)
            before = []
            if high == whole:
                target[whole:] = tail[: target.nbytes - whole]
                high = target.nbytes
            end = high - high % chunk_bytes
            sums.append(chunk_checksums(target[summed:end], chunk_bytes))
            summed = end
        return _checksums_of(item, header), b"".join(sums)

    @staticmethod
    def _read_in_turns(
        data: DirectFile, item: Item, header_size: int, arena: memoryview, copied: Copied
    ) -> bytes:
        size_bytes = item.facts.size_bytes
        part = min(header_size + round_up(size_bytes), arena.nbytes)
        data.read(item.place, arena[:part])
        checksums = _checksums_of(item, arena[:header_size])
        copied.add(arena[header_size:part])
        while copied.done < size_bytes:
            part = min(round_up(size_bytes - copied.done), arena.nbytes)
            data.read(item.place + header_size + copied.done, arena[:part])
            copied.add(arena[:part])
        return checksums

    def sync(self) -> None:
        with self._opened() as (_, index, _arenas):
            index.sync()

    def erase(self, item: Item) -> None:
        with self._opened() as (_, index, _arenas):
            index.clear(item.place)

    def probe(self) -> None:
        with self._opened():
            self._try_direct()

    def close(self) -> None:
        """Idempotent."""
        for file in (self._data, self._index):
            if file is not None:
                file.close()
        self._data = self._index = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _take_lock(self) -> None:
        self._lock_fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VaultRefused(f"{self._folder} is in use by another node") from None

    def _try_direct(self) -> None:
        """One page, read as all are: some file systems open directly and refuse afterwards."""
        assert self._data is not None
        assert self._arenas is not None
        with self._arenas.lend() as arena:
            self._data.read(0, arena[:4096])

    @contextmanager
    def _opened(self) -> Iterator[tuple[DirectFile, IndexFile, Arenas]]:
        """The files, their errors in our words."""
        if self._data is None or self._index is None or self._arenas is None:
            raise VaultAway(f"{self._folder} is not open")
        try:
            yield self._data, self._index, self._arenas
        except OSError as error:
            if error.errno == errno.EROFS:
                raise VaultReadOnly(f"{self._folder}: {error}") from error
            raise VaultAway(f"{self._folder}: {error}") from error
        except EOFError as error:
            raise RecordMissing(f"{self._folder}: {error}") from error


def _require(is_sound: bool, facts: Facts) -> None:
    """Raises RecordDamaged."""
    if not is_sound:
        raise RecordDamaged(f"{facts.key.hex()} was damaged before it was written")


def _write_padded(data: DirectFile, at: int, arena: memoryview, length: int) -> int:
    """Writes `length` bytes and zeros up to a whole page; how many in all."""
    end = round_up(length)
    arena[length:end] = bytes(end - length)
    data.write(at, arena[:end])
    return end


def _padded(room: memoryview, part: memoryview) -> memoryview:
    """`part` at the start of `room`, with zeros up to a whole page."""
    end = round_up(part.nbytes)
    room[:end] = bytes(part).ljust(end, b"\0")
    return room[:end]


def _checksums_of(item: Item, header: memoryview) -> bytes:
    """Raises RecordMissing when it is another record's, RecordDamaged when it is none."""
    found, checksums = unpack_header(header)
    if found != item.facts:
        raise RecordMissing(f"another record lies where {item.facts.key.hex()} should")
    return checksums


def _refusal(error: Exception, folder: Path) -> VaultRefused | VaultAway:
    """Why the folder cannot be used, for whoever has to mend it."""
    if not isinstance(error, OSError):
        return VaultAway(f"{folder}: {error}")
    if error.errno == errno.ENOSPC:
        return VaultRefused(f"{folder}: the disk is full; set MOONPOOL_NVME_BYTES to less")
    if error.errno == errno.EINVAL:
        return VaultRefused(f"{folder}: the file system has no direct I/O")
    if error.errno in _REFUSALS:
        return VaultRefused(f"{folder}: {error.strerror}")
    return VaultAway(f"{folder}: {error}")
