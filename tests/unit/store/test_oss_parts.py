"""Parts of large objects cover every byte once, over buffers laid end to end."""

import pytest

from services.store.tiers.oss_parts import PART_BYTES, pieces, ranges


@pytest.mark.parametrize("size", [1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES - 3])
def test_parts_cover_every_byte_once_and_only_the_last_is_small(size: int) -> None:
    parts = ranges(size)
    assert [first for first, _ in parts[1:]] == [end for _, end in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (0, size)
    assert all(end - first == PART_BYTES for first, end in parts[:-1])


def test_pieces_of_a_part_span_the_buffers() -> None:
    buffers = [memoryview(b"abc"), memoryview(b""), memoryview(b"defgh")]
    assert b"".join(pieces(buffers, 0, 8)) == b"abcdefgh"
    assert [bytes(p) for p in pieces(buffers, 2, 5)] == [b"c", b"de"]
    assert [bytes(p) for p in pieces(buffers, 3, 4)] == [b"d"]


def test_more_parts_than_a_server_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="parts"):
        ranges(100, part_bytes=1 << 40) and ranges(20_001, part_bytes=2)
