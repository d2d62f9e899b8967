"""Ranges of objects, and the chunks that prove them."""

import random

from hypothesis import given
from hypothesis import strategies as st

from moonpool.client.spans import Span, bad_chunks_of, range_of, sums_of
from moonpool.kv.checksum import chunk_checksums
from moonpool.messages.store import GetSlot

CHUNK, CHUNKS = 50, 6


@given(st.data())
def test_a_range_is_good_exactly_when_its_chunks_are(data: st.DataObject) -> None:
    whole = bytearray(random.Random(1).randbytes(CHUNK * CHUNKS))
    slot = GetSlot("hit", 0, len(whole), CHUNK, 1, chunk_checksums(memoryview(whole), CHUNK))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    flipped = data.draw(st.none() | st.integers(0, len(whole) - 1))
    if flipped is not None:
        whole[flipped] ^= 1
    span, view = Span(start, end, CHUNK), memoryview(whole)
    head = view[start - span.head_bytes : start]
    bad = bad_chunks_of(span, slot, head, view[start:end], view[end : end + span.rest_bytes])
    is_within = flipped is not None and span.first <= flipped // CHUNK < span.last
    assert bad == ([flipped // CHUNK] if is_within and flipped is not None else [])
    assert span.first * CHUNK <= start <= end <= span.last * CHUNK


@given(st.binary(min_size=1, max_size=400), st.integers(1, 120), st.integers(0, 300))
def test_checksums_over_two_pieces_are_those_of_the_whole(
    body: bytes, chunk: int, more: int
) -> None:
    tail = bytes((-(len(body) + more)) % chunk + more)
    whole = body + tail
    assert sums_of(memoryview(body), tail, chunk) == chunk_checksums(memoryview(whole), chunk)


def test_a_range_ends_with_its_value() -> None:
    assert range_of(10, 2, 5) == (2, 7)
    assert range_of(10, 2, 50) == (2, 10)
    assert range_of(10, 12, 5) == (10, 10)
    assert range_of(10, 3, None) == (3, 10)
