"""What a node's index of millions of blocks costs: memory, a restart, single operations.

The index file is the one that a node of so many records leaves behind (128 bytes each), dropped
from the page cache before it is read. A restart is: reading it, checking every entry, sorting out
contradictions, loading the shelf, and packing the keys that the node announces.
"""

import ctypes
import gc
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.store.rounds import say
from moonpool.kv import BlockKey
from moonpool.kv.checksum import CHECKSUM_BYTES
from moonpool.messages import TenantId
from moonpool.messages.store import PutEndItem, PutItem
from moonpool.settings import StoreSettings
from services.store.lower import make_shelf
from services.store.shelf import Shelf
from services.store.shell import make_core
from services.store.tiers import NvmeTier
from services.store.tiers.entries import ENTRY_BYTES, FACTORS, pack_entry
from services.store.tiers.nvme_index import IndexFile
from services.store.tiers.record import Facts, record_bytes
from services.store.tiers.vault import Item

SIZE_BYTES = 1 << 20
CHUNK_BYTES = 64 << 10
TENANT = TenantId("public")
DRAM_BLOCKS = 200_000
OPERATIONS = 20_000
PART = 1 << 18


def index_costs(folder: Path, blocks: int) -> dict[str, Any]:
    """Memory is what the process grew by, in pages, once all is loaded."""
    say(f"an index of {blocks} blocks")
    step = record_bytes(SIZE_BYTES, CHUNK_BYTES)
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-", dir=folder) as made:
        path = Path(made) / "index.dat"
        _write_index(path, blocks, step)
        tier = NvmeTier((blocks + OPERATIONS) * step * 10 // 9)
        shelf = make_shelf(tier)
        shelf.set_condition(online=True, writable=True, health="ok")
        before_bytes, began_s, began_cpu_s = _memory_bytes(), time.monotonic(), time.process_time()
        index = IndexFile(path)
        try:
            shelf.load(index.scan(tier.bytes_total), {}, 0.0)
            packed = shelf.packed_keys()[0]
            took_s, took_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
            assert len(packed) == 16 * blocks
            keys = [BlockKey(packed[i : i + 16]) for i in range(0, 16 * OPERATIONS, 16)]
            del packed
            own_bytes = shelf.records.bytes_used() + index.bytes_used()
            grew_bytes = _memory_bytes() - before_bytes
            return {
                "index_blocks": blocks,
                "index_bytes_per_block": round(grew_bytes / blocks, 1),
                "index_own_bytes_per_block": round(own_bytes / blocks, 1),
                "restart_s": round(took_s, 2),
                "restart_s_per_million": round(took_s / blocks * 1e6, 3),
                "restart_cpu_s_per_million": round(took_cpu_s / blocks * 1e6, 3),
                **_operations(shelf, keys),
                "dram_bytes_per_block": round(_dram_bytes_per_block(), 1),
            }
        finally:
            index.close()


def _write_index(path: Path, blocks: int, step: int) -> None:
    """As if so many records had been written, in a random order of places."""
    facts = Facts(BlockKey(bytes(16)), TENANT, SIZE_BYTES, CHUNK_BYTES, 0)
    base = np.frombuffer(pack_entry(Item(facts, 0)), "<u8")
    places = np.random.default_rng(1).permutation(blocks).astype(np.uint64) * np.uint64(step)
    with path.open("wb") as file:
        for start in range(0, blocks, PART):
            count = min(PART, blocks - start)
            raw = np.tile(base, (count, 1)).view(np.uint8)
            raw[:, 6:22] = np.frombuffer(os.urandom(16 * count), np.uint8).reshape(-1, 16)
            serials = np.arange(start + 1, start + count + 1, dtype=np.uint64)
            raw[:, 22:30] = serials.view(np.uint8).reshape(-1, 8)
            raw[:, 30:38] = places[start : start + count].copy().view(np.uint8).reshape(-1, 8)
            words = raw.view(np.uint64)
            words[:, 15] = (words[:, :15] * np.array(FACTORS, np.uint64)).sum(axis=1)
            file.write(raw.data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert path.stat().st_size == blocks * ENTRY_BYTES


def _operations(shelf: Shelf, keys: list[BlockKey]) -> dict[str, float]:
    """Microseconds of CPU each, at this size; and the longest one."""
    random.Random(1).shuffle(keys)
    fresh = [BlockKey(os.urandom(16)) for _ in keys]

    def arrive(key: BlockKey) -> None:
        record = shelf.begin_arrival(key, TENANT, SIZE_BYTES, CHUNK_BYTES, 0.0)
        assert record is not None
        shelf.end_arrival(record, True, 0.0)

    def evict(_: BlockKey) -> None:
        victim = shelf.next_victim(0.0)
        assert victim is not None
        shelf.drop(victim)

    out: dict[str, float] = {}
    for name, do, some in [
        ("index_find_us", shelf.find, keys),
        ("index_touch_us", lambda key: shelf.touch([key], 0.0), keys),
        ("index_arrive_us", arrive, fresh),
        ("index_evict_us", evict, keys),
    ]:
        took_s = _each_s(do, some)
        out[name] = round(float(np.median(took_s)) * 1e6, 1)
        out["index_longest_ms"] = max(out.get("index_longest_ms", 0.0), round(max(took_s) * 1e3, 2))
    return out


def _each_s(do: Callable[[BlockKey], object], keys: list[BlockKey]) -> list[float]:
    out = []
    for key in keys:
        began_s = time.thread_time()
        do(key)
        out.append(time.thread_time() - began_s)
    return out


def _dram_bytes_per_block() -> float:
    """Of a block in dram, with its checksums, in a core of its own."""
    core = make_core(StoreSettings(dram_bytes=DRAM_BLOCKS * SIZE_BYTES * 2))
    sums = bytes(SIZE_BYTES // CHUNK_BYTES * CHECKSUM_BYTES)
    before_bytes = _memory_bytes()
    for _ in range(DRAM_BLOCKS // 500):
        keys = [os.urandom(16) for _ in range(500)]
        items = [PutItem(key, SIZE_BYTES, CHUNK_BYTES) for key in keys]
        put, slots = core.put_start(TENANT, items, 10.0, 0.0)
        ends = [
            PutEndItem(key, slot.generation, bytes(bytearray(sums)))
            for key, slot in zip(keys, slots, strict=True)
        ]
        core.finish_commit(core.begin_commit(put, ends, 0.0), [True] * 500, 0.0)
        core.take_changes()
        core.take_ended_puts()
    return (_memory_bytes() - before_bytes) / DRAM_BLOCKS


def _memory_bytes() -> int:
    """Resident, after what is free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)
