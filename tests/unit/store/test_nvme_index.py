"""The index file tells after a crash what the segment holds, and nothing else."""

import os
from pathlib import Path

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.tiers.nvme_index import (
    ENTRY_BYTES,
    IndexFile,
    pack_entry,
    settle,
    unpack_entry,
)
from services.store.tiers.record import Facts
from services.store.tiers.vault import Item

TOTAL = 1 << 20


def make_item(key: int, place: int, serial: int, size_bytes: int = 4000) -> Item:
    name = BlockKey(key.to_bytes(16, "big"))
    return Item(Facts(name, TenantId("some-tenant"), size_bytes, size_bytes, serial), place)


def test_an_entry_survives_and_any_flipped_bit_unmakes_it() -> None:
    item = make_item(1, 8192, 1 << 60)
    raw = pack_entry(item)
    assert len(raw) == ENTRY_BYTES
    assert unpack_entry(raw) == item
    assert unpack_entry(bytes(ENTRY_BYTES)) is None
    for bit in range(0, 122 * 8, 7):
        torn = bytearray(raw)
        torn[bit // 8] ^= 1 << bit % 8
        assert unpack_entry(bytes(torn)) != item


def test_entries_come_back_oldest_first_and_cleared_ones_do_not(tmp_path: Path) -> None:
    index = IndexFile(tmp_path / "index.dat")
    items = [make_item(n, n * 8192, serial=100 - n) for n in range(50)]
    for item in items:
        index.add(item)
    for item in items[::2]:
        index.clear(item.place)
    for item in items[:4:2]:
        index.add(item)
    index.close()
    size_bytes = os.stat(tmp_path / "index.dat").st_size
    again = IndexFile(tmp_path / "index.dat")
    found = again.scan(TOTAL)
    assert found == sorted([*items[1::2], *items[:4:2]], key=lambda each: each.facts.serial)
    again.add(make_item(99, 90 * 8192, 999))  # takes a free slot
    again.close()
    assert os.stat(tmp_path / "index.dat").st_size == size_bytes == 50 * ENTRY_BYTES


def test_a_torn_tail_and_garbage_are_passed_over(tmp_path: Path) -> None:
    index = IndexFile(tmp_path / "index.dat")
    item = make_item(1, 8192, 5)
    index.add(item)
    index.close()
    with (tmp_path / "index.dat").open("ab") as file:
        file.write(os.urandom(ENTRY_BYTES * 3 + 50))
    again = IndexFile(tmp_path / "index.dat")
    assert again.scan(TOTAL) == [item]
    again.close()


def test_of_what_cannot_be_true_together_the_newer_is_believed() -> None:
    old, new = make_item(1, 0, 5), make_item(1, 65536, 6)
    assert settle([(0, old), (1, new)], TOTAL).kept == [(1, new)]
    under, over = make_item(2, 131072, 7, 20000), make_item(3, 135168, 8)
    settled = settle([(0, under), (1, over), (2, new)], TOTAL)
    assert settled.kept == [(2, new), (1, over)]
    assert settled.dropped == [0]
    long, inside = make_item(4, 0, 9, 40000), [make_item(5, 4096, 1), make_item(6, 20480, 2)]
    assert settle([(0, long), (1, inside[0]), (2, inside[1])], TOTAL).kept == [(0, long)]
    assert settle([(0, make_item(7, TOTAL - 4096, 1))], TOTAL).dropped == [0]
