"""Records as rows: a dictionary with an order tells the same, whatever is done."""

import random
import struct
from collections import OrderedDict

import numpy as np
import pytest

from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from services.store.packed import Rows, Table
from services.store.packed.sorting import has_twins, order_by_top, sorted_ranges
from services.store.packed.table import split, split_many
from services.store.records import Record, Records, Stage
from services.store.tiers.batch import FEW, Batch, distinct
from services.store.tiers.record import Facts, record_bytes
from services.store.tiers.vault import Item


def make_item(number: int, tenant: str = "t", size_bytes: int = 8192, chunk: int = 4096) -> Item:
    key = BlockKey(struct.pack("<QQ", number % 7, number))
    return Item(Facts(key, TenantId(tenant), size_bytes, chunk, number + 1), number * 16384)


def settle(records: Records, item: Item) -> Record:
    record = Record(item, Stage.ARRIVING)
    records.arrive(record)
    record.stage = Stage.LIVE
    records.settle(record)
    return record


def order_of(records: Records) -> list[BlockKey]:
    return [record.key for record in records.values()]


def test_records_tell_what_a_dictionary_tells_through_thousands_of_changes() -> None:
    choose, records = random.Random(5), Records()
    model: OrderedDict[BlockKey, Item] = OrderedDict()
    for step in range(6000):
        action = choose.random()
        if action < 0.5 or not model:
            item = make_item(step, choose.choice("abc"), 4096 * choose.randint(1, 40))
            model[item.facts.key] = settle(records, item).item
        elif action < 0.75:
            run = choose.sample(list(model), k=min(3, len(model)))
            records.touch([*run, BlockKey(bytes(16))])
            for key in reversed(run):
                model.move_to_end(key)
        else:
            key = choose.choice(list(model))
            assert records[key].item == model.pop(key)
            records.remove(records[key])
            assert key not in records
        if step % 500 == 0:
            records.check()
            assert order_of(records) == list(model)
    records.check()
    assert order_of(records) == list(model)
    assert {key: record.item for key, record in records.items()} == model
    assert records.live == len(records) == len(model)
    packed = records.live_keys()
    assert {packed[i : i + 16] for i in range(0, len(packed), 16)} == set(model)
    first = records.first()
    assert first is not None
    assert first.key == next(iter(model))


@pytest.mark.parametrize("count", [1, 17, 70_000])
def test_many_at_once_are_as_if_they_came_one_by_one(count: int) -> None:
    items = [make_item(n, "abc"[n % 3], 4096 * (1 + n % 50)) for n in range(count)]
    records = Records()
    records.load(Batch.of(items))
    assert records.live == count
    for number in {0, count // 2, count - 1}:
        assert records[items[number].facts.key].item == items[number]
    first = records.first()
    assert first is not None
    assert first.item == items[0]
    records.touch([items[0].facts.key])
    settle(records, make_item(count + 1))
    records.remove(records[items[count - 1].facts.key])
    if count < 1000:
        records.check()


def test_a_record_that_moves_is_one_object_until_it_rests() -> None:
    records = Records()
    settle(records, make_item(1))
    key = make_item(1).facts.key
    assert records[key] is not records[key]
    record = records[key]
    records.keep(record)
    record.moves += 1
    assert records[key] is record
    assert next(iter(records.values())) is record
    records.check()
    record.moves -= 1
    records.rest(record)
    assert records[key] is not record
    records.check()


def test_a_key_that_is_there_twice_is_refused_and_nothing_is_loaded() -> None:
    records = Records()
    with pytest.raises(ValueError, match="twice"):
        records.load(Batch.of([make_item(1), make_item(2), make_item(1)]))
    assert len(records) == 0
    records.load(Batch.of([make_item(1), make_item(2)]))
    records.check()


def test_keys_are_listed_by_how_they_begin() -> None:
    records = Records()
    keys = [b"\0v" + bytes(14), b"\0v" + b"x" * 14, b"\0w" + bytes(14), b"v\0" + bytes(14)]
    for number, key in enumerate(keys):
        facts = Facts(BlockKey(key), TenantId("t"), 4096, 4096, number + 1)
        settle(records, Item(facts, number * 16384))
    records.remove(records[BlockKey(keys[0])])
    assert records.live_keys(b"\0v") == keys[1]
    assert records.live_keys() == b"".join(keys[1:])


def test_a_shard_grows_alone_and_forgets_what_was_removed() -> None:
    rows = Rows()
    table = Table(rows)
    for number in range(20_000):
        slot = rows.take()
        rows.pages[0].low[slot], rows.pages[0].high[slot] = split(number.to_bytes(16, "little"))
        table.add(slot)
        if number >= 1000:
            old = (number - 1000).to_bytes(16, "little")
            rows.give_back(table.find(old))
            table.remove(old)
    table.check()
    assert len(table) == 1000
    assert table.bytes_used() < 2048 * 4 * (16 + 64 + 16)


def test_a_table_built_at_once_finds_every_key_and_no_other() -> None:
    rows = Rows()
    table = Table(rows)
    keys = random.Random(3).randbytes(16 * 100_000)
    low, high = split_many(keys)
    first = rows.take_many(len(low))
    rows.fill(first, "low", low)
    rows.fill(first, "high", high)
    table.build(low, high, first)
    for number in range(0, 100_000, 37):
        assert table.find(keys[16 * number : 16 * number + 16]) == number
        assert table.find(keys[16 * number + 1 : 16 * number + 17]) == -1


def test_a_batch_is_the_items_it_was_made_of() -> None:
    items = [make_item(n, "ab"[n % 2], 4096 * (1 + n % 40)) for n in range(100)]
    batch = Batch.of(items)
    assert list(batch) == items
    assert list(batch[10:20]) == items[10:20]
    assert batch.footprints().tolist() == [
        record_bytes(i.facts.size_bytes, i.facts.chunk_bytes) for i in items
    ]
    assert list(Batch.of([])) == []


@pytest.mark.parametrize("values", [1, FEW, FEW + 5])
def test_equal_values_get_equal_numbers(values: int) -> None:
    column = np.arange(1000) * 7919 % values
    numbers, firsts = distinct(column)
    assert np.array_equal(column[firsts][numbers], column)
    assert len(firsts) == values


def test_sorting_values_gives_the_order_that_sorting_indices_gives() -> None:
    values = np.random.default_rng(7).integers(0, 1 << 63, 5000, dtype=np.uint64) * np.uint64(2)
    values[100:200] = values[0]
    assert np.array_equal(order_by_top(values), np.argsort(values >> np.uint64(32), kind="stable"))
    assert has_twins(values)
    assert not has_twins(np.unique(values))


@pytest.mark.parametrize("unit", [4096, 1 << 36])
def test_ranges_come_in_the_order_of_their_starts(unit: int) -> None:
    choose = np.random.default_rng(8)
    starts = choose.permutation(500).astype(np.int64) * unit
    lengths = choose.integers(1, 9, 500) * unit
    order = np.argsort(starts)
    found_starts, found_ends = sorted_ranges(starts, lengths)
    assert np.array_equal(found_starts, starts[order])
    assert np.array_equal(found_ends, (starts + lengths)[order])
