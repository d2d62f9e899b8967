"""Blocks are no work for the garbage collector, and no single moment works through all of them."""

import gc
import os

import pytest

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.store import PutEndItem, PutItem
from moonpool.settings import StoreSettings
from services.store import core as core_module
from services.store.core import StoreCore
from services.store.lower import make_shelf
from services.store.shell import make_core
from services.store.tiers import NvmeTier

BLOCKS = 2000
TENANT = TenantId("t")


def tracked() -> int:
    gc.collect()
    return len(gc.get_objects())


def put_hundred(core: StoreCore) -> list[BlockKey]:
    keys = [BlockKey(os.urandom(16)) for _ in range(100)]
    put, slots = core.put_start(TENANT, [PutItem(k, 4096, 4096) for k in keys], 9.0, 0.0)
    ends = [PutEndItem(k, s.generation, bytes(8)) for k, s in zip(keys, slots, strict=True)]
    core.finish_commit(core.begin_commit(put, ends, 0.0), [True] * 100, 0.0)
    return keys


def test_a_block_in_dram_adds_nothing_that_is_tracked() -> None:
    core = make_core(StoreSettings(dram_bytes=BLOCKS * 8192))
    before = tracked()
    for _ in range(BLOCKS // 100):
        put_hundred(core)
    core.take_changes()
    core.take_ended_puts()
    assert core.residents.live == BLOCKS
    assert tracked() - before < BLOCKS // 20


def test_a_record_on_a_shelf_adds_nothing_that_is_tracked() -> None:
    shelf = make_shelf(NvmeTier(8 * BLOCKS * 65536))
    shelf.set_condition(online=True, writable=True, health="ok")

    def arrive(count: int) -> None:
        for _ in range(count):
            record = shelf.begin_arrival(BlockKey(os.urandom(16)), TENANT, 4096, 4096, 0.0)
            assert record is not None
            shelf.end_arrival(record, True, 0.0)
        shelf.changes.take()

    arrive(5 * BLOCKS)  # the table's shards, a bounded number, come with their first keys
    before = tracked()
    arrive(BLOCKS)
    assert shelf.live == 6 * BLOCKS
    assert tracked() - before < BLOCKS // 10


def test_a_quiet_moment_evicts_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(StoreSettings(dram_bytes=BLOCKS * 4096, headroom=0.8))
    leases = []
    for _ in range(BLOCKS // 100 - 1):
        lease, _ = core.get_start(TENANT, put_hundred(core), 30.0, 0.0)
        leases.append(lease)
    for lease in leases:
        core.get_end(lease, 0.0)
    before = core.residents.evictions
    monkeypatch.setattr(core_module, "TRIM_MAX", 10)
    core.trim(0.0)
    assert core.residents.evictions == before + 10
    core.check()
