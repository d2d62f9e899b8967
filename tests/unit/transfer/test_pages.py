"""Pages are there when `prepare` returns, and no byte has changed."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from moonpool.transfer import LocalRegion, TransferEngine
from moonpool.transfer import pages as module
from moonpool.transfer.errors import TransferBusy
from moonpool.transfer.memory import allocate, wrap
from moonpool.transfer.pages import populate, prepare

MIB = 1 << 20


def resident_bytes(address: int) -> int:
    """Of the mapping that holds `address`, as the kernel says."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            first, last = (int(each, 16) for each in head.split("-"))
            here = first <= address < last
        elif here and head == "Rss:":
            found += int(line.split()[1]) << 10
    return found


async def test_all_pieces_are_there_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 2 * MIB)
    memory = allocate(17 * MIB + 5)
    memory.array[5 * MIB] = 77
    told: list[tuple[int, int]] = []
    await prepare(memory, lambda done, total: told.append((done, total)))
    assert resident_bytes(memory.address) >= 17 * MIB
    assert [total for _, total in told] == [memory.length] * 9
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1][0] == memory.length
    assert int(memory.array.sum(dtype=np.int64)) == 77
    memory.close_fd()


async def test_a_kernel_that_cannot_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MADV_POPULATE_WRITE", 9999)
    memory = allocate(3 * MIB)
    memory.array[MIB] = 5
    await prepare(memory, None)
    assert resident_bytes(memory.address) >= 3 * MIB
    assert int(memory.array.sum(dtype=np.int64)) == 5
    memory.close_fd()


async def test_one_who_is_cancelled_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", MIB)
    memory = allocate(512 * MIB)
    task = asyncio.create_task(prepare(memory, lambda done, total: task.cancel()))
    with pytest.raises(asyncio.CancelledError):
        await task
    threads = [each for each in threading.enumerate() if each.name.startswith("moonpool-pages")]
    assert not threads
    assert resident_bytes(memory.address) < 512 * MIB
    memory.close_fd()


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="memory"):
        populate(1 << 46, 4096)


async def test_an_engine_prepares_what_it_allocated(tmp_path: Path) -> None:
    engine = await TransferEngine.start("e", host_id="h", run_dir=tmp_path, transports=("memory",))
    try:
        region: LocalRegion = engine.allocate(8 * MIB)
        await engine.prepare(region)
        assert resident_bytes(region.address) >= 8 * MIB
        await engine.prepare(engine.register_memory(bytearray(100)))
    finally:
        await engine.close()


async def test_an_engine_has_adapters_pin_what_it_prepares_once_its_pages_are_there(
    tmp_path: Path,
) -> None:
    engine = await TransferEngine.start("e", host_id="h", run_dir=tmp_path, transports=("memory",))
    told: list[tuple[str, int, bool]] = []

    def adapter(name: str, pinned: LocalRegion) -> None:
        on_loop = threading.current_thread() is threading.main_thread()
        told.append((name, resident_bytes(pinned.address), on_loop))

    def full(pinned: LocalRegion) -> None:
        raise TransferBusy("the adapter takes no more memory")

    try:
        region = engine.allocate(8 * MIB)
        engine._table.pins += [partial(adapter, "a"), partial(adapter, "b")]
        await engine.prepare(region)
        assert sorted(name for name, _, _ in told) == ["a", "b"]
        assert all(there >= 8 * MIB and not on_loop for _, there, on_loop in told)
        engine._table.pins.append(full)
        with pytest.raises(TransferBusy):
            await engine.prepare(region)
    finally:
        await engine.close()


def test_an_address_is_as_good_as_a_buffer() -> None:
    owner = np.zeros(10_000, np.uint8)
    memory = wrap((int(owner.ctypes.data) + 10, 100))
    memory.array[:] = 3
    assert owner[9:111].tolist() == [0, *[3] * 100, 0]
