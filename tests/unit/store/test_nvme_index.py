"""The index file tells after a crash what the segment holds, and nothing else."""

import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.packed.numbers import Numbers
from services.store.tiers.entries import ENTRY_BYTES, pack_entry, read_entries, settle
from services.store.tiers.nvme_index import IndexFile
from services.store.tiers.record import Facts
from services.store.tiers.vault import Item

TOTAL = 1 << 20


def make_item(key: int, place: int, serial: int, size_bytes: int = 4000) -> Item:
    name = BlockKey(key.to_bytes(16, "big"))
    return Item(Facts(name, TenantId("some-tenant"), size_bytes, size_bytes, serial), place)


def unpack_entry(raw: bytes) -> Item | None:
    return next(iter(read_entries(raw, TOTAL)[1]), None)


def test_an_entry_survives_and_any_flipped_bit_unmakes_it() -> None:
    item = make_item(1, 8192, 1 << 60)
    raw = pack_entry(item)
    assert len(raw) == ENTRY_BYTES
    assert unpack_entry(raw) == item
    assert unpack_entry(bytes(ENTRY_BYTES)) is None
    for bit in range(0, 128 * 8, 7):
        torn = bytearray(raw)
        torn[bit // 8] ^= 1 << bit % 8
        assert unpack_entry(bytes(torn)) is None


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
    assert list(found) == sorted([*items[1::2], *items[:4:2]], key=lambda each: each.facts.serial)
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
    assert list(again.scan(TOTAL)) == [item]
    again.close()


def test_entries_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    raw = struct.pack("<4sH16sQQQQ64s", b"MPIX", 1, b"k" * 16, 9, 8192, 4000, 400, b"tenant")
    raw = (raw + struct.pack("<I", zlib.crc32(raw))).ljust(ENTRY_BYTES, b"\0")
    (tmp_path / "index.dat").write_bytes(raw + raw.replace(b"kk", b"kK", 1))
    index = IndexFile(tmp_path / "index.dat")
    facts = Facts(BlockKey(b"k" * 16), TenantId("tenant"), 4000, 400, 9)
    assert list(index.scan(TOTAL)) == [Item(facts, 8192)]
    index.close()


def test_what_sticks_out_of_the_segment_is_no_record() -> None:
    assert unpack_entry(pack_entry(make_item(7, TOTAL - 4096, 1))) is None


def test_of_what_cannot_be_true_together_the_newer_is_believed() -> None:
    old, new = make_item(1, 0, 5), make_item(1, 65536, 6)
    assert settle([(0, old), (1, new)]).kept == [(1, new)]
    under, over = make_item(2, 131072, 7, 20000), make_item(3, 135168, 8)
    settled = settle([(0, under), (1, over), (2, new)])
    assert settled.kept == [(2, new), (1, over)]
    assert settled.dropped == [0]
    long, inside = make_item(4, 0, 9, 40000), [make_item(5, 4096, 1), make_item(6, 20480, 2)]
    assert settle([(0, long), (1, inside[0]), (2, inside[1])]).kept == [(0, long)]


def test_a_scan_finds_what_looking_at_each_pair_finds(tmp_path: Path) -> None:
    choose = random.Random(2)
    for _ in range(40):
        items = [
            make_item(choose.randrange(60), 4096 * choose.randrange(240), serial, 4000)
            for serial in choose.sample(range(1, 1000), 50)
        ]
        raw = b"".join(map(pack_entry, items))
        (tmp_path / "index.dat").write_bytes(raw)
        index = IndexFile(tmp_path / "index.dat")
        kept = [item for _, item in settle(enumerate(items)).kept]
        assert list(index.scan(TOTAL)) == sorted(kept, key=lambda each: each.facts.serial)
        for item in kept:
            index.clear(item.place)
        index.close()
        again = IndexFile(tmp_path / "index.dat")
        assert list(again.scan(TOTAL)) == []
        again.close()


def test_numbers_tell_what_a_dictionary_tells() -> None:
    choose, numbers, model = random.Random(4), Numbers(), dict[int, int]()
    for _ in range(20_000):
        key = 4096 * choose.randrange(3000)
        if choose.random() < 0.6:
            model[key] = choose.randrange(1 << 32)
            numbers.set(key, model[key])
        else:
            assert numbers.pop(key) == model.pop(key, -1)
    assert len(numbers) == len(model)
    for key in range(0, 4096 * 3000, 4096):
        assert numbers.get(key) == model.get(key, -1)
    numbers.build(np.array(list(model)), np.array(list(model.values())))
    assert all(numbers.get(key) == value for key, value in model.items())
