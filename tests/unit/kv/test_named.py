"""Named values as objects: sizes, tails and keys."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.kv.named import (
    CHUNK_MIN_BYTES,
    CHUNKS_MAX,
    MARK,
    TRAILER_BYTES,
    Kind,
    chunked,
    named_key,
    named_size,
    part_key,
    read_name,
    read_trailer,
    tail_of,
    value_size,
)


@given(st.integers(1, 1 << 31))
def test_an_object_is_whole_chunks_and_wastes_less_than_a_byte_per_chunk(need: int) -> None:
    size_bytes, chunk_bytes = chunked(need)
    chunks = size_bytes // chunk_bytes
    assert size_bytes == chunks * chunk_bytes
    assert 1 <= chunks <= CHUNKS_MAX
    assert need <= size_bytes < need + chunks
    assert chunk_bytes <= CHUNK_MIN_BYTES or chunks == CHUNKS_MAX


@settings(max_examples=30)
@given(st.binary(max_size=140_000), st.text(min_size=1, max_size=100), st.sampled_from(Kind))
def test_an_object_says_itself_what_it_is(value: bytes, name: str, kind: Kind) -> None:
    raw = name.encode("utf-8", "ignore") or b"x"
    whole = memoryview(value + tail_of(len(value), raw, kind))
    assert whole.nbytes == named_size(len(value), raw)[0]
    trailer = read_trailer(whole[-TRAILER_BYTES:], whole.nbytes)
    assert trailer is not None
    assert (trailer.value_bytes, trailer.kind) == (len(value), kind)
    assert read_name(whole, trailer).encode() == raw


@given(st.binary(min_size=TRAILER_BYTES, max_size=200))
def test_other_bytes_are_no_named_value(raw: bytes) -> None:
    assert read_trailer(raw, len(raw)) is None


def test_a_trailer_that_contradicts_its_object_is_none() -> None:
    whole = b"abc" + tail_of(3, b"name", Kind.VALUE)
    assert read_trailer(whole, len(whole)) is not None
    assert read_trailer(whole, len(whole) + 1) is None
    assert read_trailer(whole[:-1] + b"\0", len(whole)) is None
    assert read_trailer(b"", 0) is None
    assert read_trailer(whole[:-5] + b"\x09" + whole[-4:], len(whole)) is None  # of another version


def test_a_manifest_tells_the_length_of_the_value_it_stands_for() -> None:
    body = (1 << 29).to_bytes(8, "little") + b"where it lies"
    whole = memoryview(body + tail_of(len(body), b"n", Kind.MANIFEST))
    trailer = read_trailer(whole, whole.nbytes)
    assert trailer is not None
    assert value_size(whole, trailer) == 1 << 29


def test_keys_differ_by_tenant_salt_name_version_and_part() -> None:
    pairs = [("a", "b"), ("a", "c"), ("b", "b"), ("a:1", "b"), ("a", ":1b"), ("a", "b")]
    salts = [b""] * 5 + [b"secret"]
    keys = [named_key(t, n, s) for (t, n), s in zip(pairs, salts, strict=True)]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 and key.startswith(MARK) for key in keys)
    parts = [part_key(keys[0], b"v1", 0), part_key(keys[0], b"v1", 1), part_key(keys[0], b"v2", 0)]
    assert len({*parts, part_key(keys[1], b"v1", 0)}) == 4
    assert not any(part.startswith(MARK) for part in parts)


@pytest.mark.parametrize("need", [1, CHUNK_MIN_BYTES, CHUNK_MIN_BYTES + 1])
def test_small_objects_are_one_chunk(need: int) -> None:
    assert chunked(need)[1] == min(need, -(-need // (1 if need <= CHUNK_MIN_BYTES else 2)))
