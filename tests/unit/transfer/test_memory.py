"""Memory that peers map cannot change its size, and views never dangle."""

import fcntl
import gc
import mmap
import os
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest
import torch

from moonpool.transfer.errors import BadTransfer
from moonpool.transfer.memory import allocate, map_peer, readonly_fd, wrap

READ_ONLY = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
READ_ONLY_ADDRESS = int(np.frombuffer(READ_ONLY, np.uint8).ctypes.data)


def test_size_is_sealed() -> None:
    memory = allocate(10_000)
    for size in (0, 20_000):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    memory.close_fd()
    memory.close_fd()


def test_an_unsealed_file_is_not_mapped() -> None:
    fd = os.memfd_create("loose", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    with pytest.raises(OSError, match="sealed"):
        map_peer(fd, 4096, writable=True)
    os.close(fd)


def test_a_file_shorter_than_promised_is_not_mapped() -> None:
    memory = allocate(4096)
    with pytest.raises(OSError, match="shorter"):
        map_peer(memory.fd, 4097, writable=True)
    memory.close_fd()


def test_both_mappings_show_the_same_bytes_and_a_reader_cannot_write() -> None:
    memory = allocate(5000)
    other = map_peer(memory.fd, 5000, writable=True)
    fd = readonly_fd(memory.fd)
    reader = map_peer(fd, 5000, writable=False)
    with pytest.raises(PermissionError):
        map_peer(fd, 5000, writable=True)
    os.close(fd)
    memory.close_fd()
    other.array[:] = 7
    assert memory.array.min() == reader.array.min() == 7
    with pytest.raises(ValueError, match="read-only"):
        reader.array[0] = 1


def test_a_mapping_goes_with_its_last_view() -> None:
    gc.collect()
    before = _mapped()
    memory = allocate(8 << 20)
    view = memoryview(memory.array)[100:]
    memory.close_fd()
    del memory
    view[0] = 5
    assert view[0] == 5
    assert _mapped() == before + 1
    del view
    assert _mapped() == before


def _mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:moonpool")


def test_large_memory_is_aligned_for_huge_pages() -> None:
    memory = allocate(8 << 20)
    assert memory.address % (2 << 20) == 0
    memory.close_fd()


@pytest.mark.parametrize(
    "buffer",
    [
        b"read-only",
        bytearray(),
        memoryview(bytearray(10))[::2],
        object(),
        torch.zeros(4, 4).t(),
        torch.zeros(0),
        np.zeros((4, 4))[:, 1],
        (1 << 46, 10),
        (0, 10),
        (-1, 10),
        (1 << 80, 10),
        (1,),
        ("a", 1),
        (READ_ONLY_ADDRESS, 10),
    ],
)
def test_what_cannot_be_registered_is_refused(buffer: object) -> None:
    with pytest.raises(BadTransfer):
        wrap(buffer)


def test_a_tensor_of_any_dtype_is_seen_as_bytes() -> None:
    tensor = torch.ones(3, 5, dtype=torch.bfloat16)
    memory = wrap(tensor)
    assert memory.length == 30
    memory.array[:] = 0
    assert not tensor.any()


def test_the_callers_buffer_stays_alive_with_its_memory() -> None:
    memory = wrap(mmap.mmap(-1, 4096))
    gc.collect()
    memory.array[:] = 3
    assert int(memory.array.sum()) == 3 * 4096


def test_seals_are_what_peers_check() -> None:
    memory = allocate(10)
    assert fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    memory.close_fd()


def test_shared_memory_of_the_standard_library_is_registered_as_it_is() -> None:
    shared = SharedMemory(create=True, size=4096)
    try:
        assert shared.buf is not None
        memory = wrap(shared)
        memory.array[:3] = 9
        assert bytes(shared.buf[:4]) == b"\t\t\t\0"
        del memory
        gc.collect()
    finally:
        shared.close()
        shared.unlink()
