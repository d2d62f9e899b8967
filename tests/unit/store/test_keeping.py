"""Dram over a restart: exactly what a clean stop kept, each object only if it is whole."""

import os
import random
import time
from pathlib import Path

import pytest

from moonpool.kv.checksum import chunk_checksums
from services.store.keeping import BYTES, INDEX, KeepFolder, Kept, batches

SIZE, CHUNK = 12_000, 3_000


def make_objects(count: int) -> list[tuple[Kept, memoryview]]:
    values = [memoryview(random.Random(n).randbytes(SIZE)) for n in range(count)]
    return [
        (Kept(n.to_bytes(16, "big"), "acme", SIZE, CHUNK, chunk_checksums(v, CHUNK)), v)
        for n, v in enumerate(values)
    ]


def write(folder: KeepFolder, count: int, bytes_max: int = 1 << 30) -> list[memoryview]:
    objects = make_objects(count)
    folder.write(objects, bytes_max, time.monotonic() + 10.0)
    return [view for _, view in objects]


def read(folder: KeepFolder, kept: list[Kept]) -> list[bytes | None]:
    views = [memoryview(bytearray(each.size_bytes)) for each in kept]
    sound = folder.read(list(zip(kept, views, strict=True)))
    return [bytes(v) if is_sound else None for v, is_sound in zip(views, sound, strict=True)]


def test_what_was_kept_comes_back_once(tmp_path: Path) -> None:
    folder = KeepFolder(tmp_path / "node")
    values = write(folder, 5)
    kept = folder.take()
    assert [int.from_bytes(each.key, "big") for each in kept] == list(range(5))
    assert read(folder, kept) == [bytes(value) for value in values]
    assert folder.take() == []
    folder.clear()
    assert list((tmp_path / "node").iterdir()) == []


def test_a_folder_where_nothing_can_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for where in (Path("/proc/nope"), tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"nope|below"):
            KeepFolder(where).require()
    KeepFolder(tmp_path / "new").require()
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("damage", ["a flipped bit", "another file", "no index"])
def test_what_is_dropped_is_logged(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = KeepFolder(tmp_path)
    assert folder.take() == []
    assert caplog.text == ""  # nothing was kept: no news
    write(folder, 2)
    index = tmp_path / INDEX
    raw = index.read_bytes()
    if damage == "a flipped bit":
        index.write_bytes(raw[:20] + bytes([raw[20] ^ 1]) + raw[21:])
    elif damage == "another file":
        index.write_bytes(b"hello")
    else:
        index.unlink()
    assert folder.take() == []
    assert "dram is not restored" in caplog.text


def test_what_has_no_room_is_left_out(tmp_path: Path) -> None:
    folder = KeepFolder(tmp_path)
    write(folder, 5, bytes_max=2 * SIZE + 1)
    assert len(folder.take()) == 2


def test_a_flipped_bit_or_a_missing_end_costs_its_object_alone(tmp_path: Path) -> None:
    folder = KeepFolder(tmp_path)
    values = write(folder, 4)
    with (tmp_path / BYTES).open("r+b") as file:
        file.seek(SIZE + 77)
        file.write(bytes([values[1][77] ^ 1]))
        file.truncate(4 * SIZE - 1)
    found = read(folder, folder.take())
    assert found == [values[0], None, values[2], None]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_index_is_none(tmp_path: Path, damage: str) -> None:
    folder = KeepFolder(tmp_path)
    write(folder, 3)
    raw = bytearray((tmp_path / INDEX).read_bytes())
    if damage == "flip":
        raw[random.Random(1).randrange(len(raw))] ^= 4
    raw = {"cut": raw[:-9], "empty": bytearray(), "other": bytearray(b"hello")}.get(damage, raw)
    (tmp_path / INDEX).write_bytes(raw)
    assert folder.take() == []


def test_a_stop_that_is_cut_off_leaves_nothing_to_believe(tmp_path: Path) -> None:
    folder = KeepFolder(tmp_path)
    write(folder, 3)

    def broken() -> object:
        yield from make_objects(2)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        folder.write(broken(), 1 << 30, time.monotonic() + 10.0)  # type: ignore[arg-type]
    assert folder.take() == []


def test_others_cannot_read_what_is_kept(tmp_path: Path) -> None:
    folder = KeepFolder(tmp_path / "node")
    write(folder, 1)
    for path in (tmp_path / "node", tmp_path / "node" / BYTES, tmp_path / "node" / INDEX):
        assert os.stat(path).st_mode & 0o077 == 0


def test_batches_are_bounded_and_miss_nothing() -> None:
    kept = [Kept(bytes([n]), "t", size << 20, 1, b"") for n, size in enumerate([20, 20, 40, 1, 1])]
    groups = list(batches(kept))
    assert [len(group) for group in groups] == [1, 1, 1, 2]
    assert [each for group in groups for each in group] == kept
