"""The nvme vault's two ways to a disk, in place and by an arena: the same bytes by either."""

import os
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest

from moonpool.kv import BlockKey
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages import TenantId
from moonpool.transfer.memory import allocate
from services.store.tiers import nvme_vault
from services.store.tiers.copied import PIECE_BYTES, Copied
from services.store.tiers.direct import DirectFile
from services.store.tiers.errors import RecordDamaged
from services.store.tiers.huge import HUGE_PAGE_BYTES, HugePages
from services.store.tiers.nvme_vault import NvmeVault
from services.store.tiers.record import Facts
from services.store.tiers.vault import Item

SIZES = [(1, 1), (4095, 4095), (4096, 512), (70_000, 7_000), ((3 << 20) + 12, 12 + (3 << 20))]


class Fixed(HugePages):
    """Says yes to whatever begins with a page, or no to everything."""

    def __init__(self, answer: bool) -> None:
        super().__init__()
        self._answer = answer

    def ready(self, view: memoryview) -> bool:
        return self._answer and np.frombuffer(view, np.uint8).ctypes.data % 4096 == 0


def memory(size_bytes: int) -> memoryview:
    return memoryview(allocate(size_bytes).array).cast("B")


def open_vault(folder: Path, in_place: bool) -> NvmeVault:
    vault = NvmeVault(folder / "nvme", 16 << 20)
    vault._huge = Fixed(in_place)
    list(vault.open())
    return vault


def make_item(size_bytes: int, chunk_bytes: int, place: int = 0) -> Item:
    facts = Facts(BlockKey(os.urandom(16)), TenantId("t"), size_bytes, chunk_bytes, 7)
    return Item(facts, place)


@pytest.mark.parametrize(("size_bytes", "chunk_bytes"), SIZES)
@pytest.mark.parametrize("writes_in_place", [True, False])
@pytest.mark.parametrize("reads_in_place", [True, False])
def test_what_one_way_wrote_the_other_reads(
    tmp_path: Path, size_bytes: int, chunk_bytes: int, writes_in_place: bool, reads_in_place: bool
) -> None:
    source, target = memory(size_bytes), memory(size_bytes)
    source[:] = os.urandom(size_bytes)
    sums, item = chunk_checksums(source, chunk_bytes), make_item(size_bytes, chunk_bytes, 8192)
    vault = open_vault(tmp_path, writes_in_place)
    vault.write(item, sums, source)
    vault._huge = Fixed(reads_in_place)
    assert vault.read(item, target) == sums
    assert target == source
    vault.close()


@pytest.mark.parametrize("in_place", [True, False])
def test_objects_larger_than_the_arena_go_in_turns(
    tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvme_vault, "ARENA_BYTES", 2 << 20)
    size_bytes = (5 << 20) + 40
    source, target = memory(size_bytes), memory(size_bytes)
    source[:] = os.urandom(size_bytes)
    vault = open_vault(tmp_path, in_place)
    sums, item = chunk_checksums(source, 40), make_item(size_bytes, 40)
    vault.write(item, sums, source)
    assert vault.read(item, target) == sums
    assert target == source
    vault.close()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_flipped_bit_on_disk_is_never_read_as_sound(tmp_path: Path, in_place: bool) -> None:
    source, target = memory(70_000), memory(70_000)
    source[:] = os.urandom(70_000)
    vault, item = open_vault(tmp_path, in_place), make_item(70_000, 7_000)
    vault.write(item, chunk_checksums(source, 7_000), source)
    with (tmp_path / "nvme" / "segment.dat").open("r+b") as file:
        file.seek(4096 + 69_999)
        file.write(bytes([source[69_999] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
    with pytest.raises(RecordDamaged):
        vault.read(item, target)
    vault.close()


@pytest.mark.parametrize("in_place", [True, False])
def test_what_was_damaged_before_is_not_written(tmp_path: Path, in_place: bool) -> None:
    source = memory(8192)
    vault, item = open_vault(tmp_path, in_place), make_item(8192, 4096)
    with pytest.raises(RecordDamaged):
        vault.write(item, bytes(16), source)
    vault.close()
    again = NvmeVault(tmp_path / "nvme", 16 << 20)
    assert [list(page) for page in again.open()] == [[]]
    again.close()


def test_huge_pages_change_no_byte_and_are_asked_for_once() -> None:
    view = memory(4 * HUGE_PAGE_BYTES)
    view[: 1 << 20] = b"x" * (1 << 20)
    pages = HugePages()
    answers = {pages.ready(view) for _ in range(3)}
    assert len(answers) == 1
    assert view[: 1 << 20] == b"x" * (1 << 20)
    assert not any(view[1 << 20 :])
    assert sum(pages.stats().values()) in (1, 4)  # refused at the first, or all made


def test_memory_that_begins_inside_a_page_is_not_ready() -> None:
    assert not HugePages().ready(memory(8192)[8:])


@pytest.mark.parametrize("chunk_bytes", [1, 1000, PIECE_BYTES - 1, 3 * PIECE_BYTES, 6_000_000])
def test_copies_in_parts_have_the_sums_of_the_whole(chunk_bytes: int) -> None:
    size_bytes = max(1, 6_000_000 // chunk_bytes) * chunk_bytes if chunk_bytes > 1 else 1000
    source, target = os.urandom(size_bytes), memoryview(bytearray(size_bytes))
    copied = Copied(target, chunk_bytes)
    for start in range(0, size_bytes, 1_234_567):
        copied.add(memoryview(source)[start : start + 1_234_567])
    assert target == source
    assert copied.checksums() == chunk_checksums(memoryview(source), chunk_bytes)


def test_threads_that_ask_at_once_share_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DirectFile(tmp_path / "f", 1 << 20)
    calls, threads = [], 8
    release = Barrier(2)

    def fdatasync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            release.wait(10.0)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    workers = [Thread(target=file.sync) for _ in range(threads)]
    for worker in workers:
        worker.start()
    release.wait(10.0)
    for worker in workers:
        worker.join(10.0)
    assert 1 <= len(calls) <= threads
    assert file._syncs_done == file._syncs_begun == len(calls)
    file.close()


def test_a_sync_that_fails_fails_only_who_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DirectFile(tmp_path / "f", 1 << 20)
    errors = [OSError(5, "bad disk")]

    def fdatasync(fd: int) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(OSError, match="bad disk"):
        file.sync()
    file.sync()
    file.close()
