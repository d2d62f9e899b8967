"""Block checksums: every flipped bit is found, in the chunk where it happened."""

import random

import pytest
import xxhash

from moonpool.kv.checksum import CHECKSUM_BYTES, bad_chunks, chunk_checksums


def make_bytes(size_bytes: int, seed: int = 1) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size_bytes))


def test_checksums_are_little_endian_xxh3_of_each_chunk() -> None:
    data = make_bytes(3 * 100)
    expected = b"".join(
        xxhash.xxh3_64_intdigest(bytes(data[i : i + 100])).to_bytes(8, "little")
        for i in (0, 100, 200)
    )
    assert chunk_checksums(memoryview(data), 100) == expected


def test_a_flipped_bit_is_found_in_its_own_chunk() -> None:
    data = make_bytes(30 * 512)
    sums = chunk_checksums(memoryview(data), 512)
    assert bad_chunks(memoryview(data), 512, sums) == []
    data[7 * 512 + 3] ^= 0x10
    data[29 * 512] ^= 0x01
    assert bad_chunks(memoryview(data), 512, sums) == [7, 29]


def test_swapped_chunks_are_both_bad() -> None:
    data = make_bytes(2 * 64)
    sums = chunk_checksums(memoryview(data), 64)
    swapped = data[64:] + data[:64]
    assert bad_chunks(memoryview(swapped), 64, sums) == [0, 1]


def test_an_empty_view_has_no_checksums() -> None:
    assert chunk_checksums(memoryview(b""), 64) == b""
    assert bad_chunks(memoryview(b""), 64, b"") == []


def test_any_view_over_the_same_bytes_gives_the_same_checksums() -> None:
    data = make_bytes(4 * 256)
    words = memoryview(data).cast("Q")
    assert chunk_checksums(words, 256) == chunk_checksums(memoryview(bytes(data)), 256)


@pytest.mark.parametrize("chunk_bytes", [0, -1, 33])
def test_chunks_that_do_not_divide_the_bytes_are_refused(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="whole number of chunks"):
        chunk_checksums(memoryview(make_bytes(64)), chunk_bytes)


def test_a_wrong_number_of_checksums_is_refused() -> None:
    data = make_bytes(128)
    with pytest.raises(ValueError, match="for 2 chunks"):
        bad_chunks(memoryview(data), 64, b"\0" * CHECKSUM_BYTES)
