"""What dram held, over a restart: two files, for a node that is stopped cleanly and starts again.

The bytes are written first, the index after them under another name, and renamed when it is whole.
A start takes the index away before it believes it. So there is no index after a crash, and nothing
is ever restored twice; and each object is believed only if its bytes have its checksums.
"""

import contextlib
import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from moonpool.kv.checksum import bad_chunks

INDEX, BYTES = "dram.index", "dram.bytes"
BATCH_BYTES = 32 << 20
VIEWS_MAX = 256  # of one request
log = logging.getLogger(__name__)

_MAGIC = b"MPKEEP01"
_CRC_BYTES = 4


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """One object."""

    key: bytes
    tenant: str
    size_bytes: int
    chunk_bytes: int
    checksums: bytes
    at: int = 0  # where its bytes begin in the file


class KeepFolder:
    """Blocking; for threads. Errors are OSError, and nothing is kept then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(
        self,
        objects: Iterable[tuple[Kept, memoryview]],
        bytes_max: int,
        until_s: float,
    ) -> int:
        """Keeps objects in this order until there is no more room or time (`time.monotonic`); how
        many. What was kept before is gone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path(INDEX).unlink(missing_ok=True)
        kept: list[Kept] = []
        at = 0
        with self._path(BYTES).open("wb", buffering=0) as file:
            os.chmod(file.fileno(), 0o600)
            for facts, view in objects:
                if time.monotonic() > until_s:
                    break
                if at + facts.size_bytes > bytes_max:
                    continue
                _write_all(file.fileno(), view)
                kept.append(msgspec.structs.replace(facts, at=at))
                at += facts.size_bytes
            os.fsync(file.fileno())
        body = _MAGIC + msgspec.msgpack.encode(kept)
        fresh = self._path(f"{INDEX}.new")
        with fresh.open("wb") as file:
            os.chmod(file.fileno(), 0o600)
            file.write(body + zlib.crc32(body).to_bytes(_CRC_BYTES, "little"))
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self._path(INDEX))
        return len(kept)

    @property
    def is_filled(self) -> bool:
        """Whether a clean stop has left anything."""
        return self._path(INDEX).exists()

    def take(self) -> list[Kept]:
        """What was kept, once: a second call finds nothing. Whatever is not exactly what a clean
        stop has written counts as nothing, and is logged."""
        taken = self._path(f"{INDEX}.taken")
        try:
            self._path(INDEX).rename(taken)
            raw = taken.read_bytes()
            taken.unlink()
        except FileNotFoundError:
            if self._path(BYTES).exists():
                log.warning("dram is not restored: the last stop did not end cleanly")
            return []
        body, crc = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
        if body[: len(_MAGIC)] != _MAGIC or zlib.crc32(body).to_bytes(_CRC_BYTES, "little") != crc:
            log.warning("dram is not restored: %s in %s is damaged", INDEX, self.folder)
            return []
        try:
            return msgspec.msgpack.decode(body[len(_MAGIC) :], type=list[Kept])
        except msgspec.DecodeError as error:
            log.warning("dram is not restored: %s in %s: %s", INDEX, self.folder, error)
            return []

    def read(self, objects: Iterable[tuple[Kept, memoryview]]) -> list[bool]:
        """Fills each view; whether its bytes are what its checksums say."""
        wanted = list(objects)
        fd = os.open(self._path(BYTES), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for run in _neighbours(wanted):
                _fill(fd, run[0][0].at, [view for _, view in run])
        finally:
            os.close(fd)
        return [not bad_chunks(view, k.chunk_bytes, k.checksums) for k, view in wanted]

    def clear(self) -> None:
        """Gives the room back."""
        with contextlib.suppress(OSError):
            self._path(BYTES).unlink(missing_ok=True)

    def require(self) -> None:
        """OSError when nothing can be kept here."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial = self._path("trial")
        trial.write_bytes(b"")
        trial.unlink()

    def room_bytes(self) -> int:
        """What may be written there: most of what is free on the disk (or in the memory disk)."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = os.statvfs(self.folder)
        own_bytes = 0
        with contextlib.suppress(FileNotFoundError):
            own_bytes = self._path(BYTES).stat().st_size
        return disk.f_bavail * disk.f_frsize * 9 // 10 + own_bytes

    def _path(self, name: str) -> Path:
        return self.folder / name


def batches(kept: Iterable[Kept]) -> Iterator[list[Kept]]:
    """In groups of bounded size."""
    batch: list[Kept] = []
    room_bytes = BATCH_BYTES
    for each in kept:
        if batch and each.size_bytes > room_bytes:
            yield batch
            batch, room_bytes = [], BATCH_BYTES
        batch.append(each)
        room_bytes -= each.size_bytes
    if batch:
        yield batch


def _write_all(fd: int, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        done += os.write(fd, view[done:])


def _neighbours(
    objects: list[tuple[Kept, memoryview]],
) -> Iterator[list[tuple[Kept, memoryview]]]:
    """In runs that lie one after the other in the file: one request reads them all."""
    run: list[tuple[Kept, memoryview]] = []
    end = -1
    for kept, view in objects:
        if run and (kept.at != end or len(run) == VIEWS_MAX):
            yield run
            run = []
        run.append((kept, view))
        end = kept.at + kept.size_bytes
    if run:
        yield run


def _fill(fd: int, at: int, views: list[memoryview]) -> None:
    """What the file is too short for stays as it was: checksums tell."""
    while views:
        count = os.preadv(fd, views, at)
        if not count:
            return
        at += count
        while views and count >= views[0].nbytes:
            count -= views.pop(0).nbytes
        if count:
            views[0] = views[0][count:]
