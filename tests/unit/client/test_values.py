"""Values as objects, and which node holds them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.client import CorruptValue
from moonpool.client.placement import rank_nodes
from moonpool.client.values import CHUNK_BYTES, frame_into, framed_sizes, unframe, value_key


@given(st.binary(max_size=5000))
def test_a_framed_value_comes_back(value: bytes) -> None:
    size_bytes, chunk_bytes = framed_sizes(len(value))
    assert size_bytes % chunk_bytes == 0
    view = memoryview(bytearray(b"\xff" * size_bytes))
    frame_into(view, value)
    assert unframe(view) == value


@pytest.mark.parametrize("value_bytes", [CHUNK_BYTES - 8, CHUNK_BYTES - 7, 3 * CHUNK_BYTES, 10])
def test_large_values_are_whole_chunks_and_small_ones_are_one(value_bytes: int) -> None:
    size_bytes, chunk_bytes = framed_sizes(value_bytes)
    assert size_bytes >= value_bytes + 8
    assert chunk_bytes == min(size_bytes, CHUNK_BYTES)
    assert size_bytes % chunk_bytes == 0


def test_a_length_beyond_the_object_is_corruption() -> None:
    with pytest.raises(CorruptValue):
        unframe(memoryview((1000).to_bytes(8, "little") + bytes(8)))


def test_keys_differ_by_tenant_and_name() -> None:
    pairs = [("a", "b"), ("a", "c"), ("b", "b"), ("a:1", "b"), ("a", ":1b")]
    assert len({value_key(tenant, name) for tenant, name in pairs}) == len(pairs)
    assert value_key("a", "b") == value_key("a", b"b")
    assert len(value_key("a", "b")) == 16


def test_nodes_share_values_evenly_and_a_lost_one_moves_only_its_own() -> None:
    nodes = ["n1", "n2", "n3"]
    keys = [value_key("t", str(n)) for n in range(3000)]
    first = {key: rank_nodes(key, nodes)[0] for key in keys}
    assert all(800 < count < 1200 for count in Counter(first.values()).values())
    for key, node in first.items():
        left = rank_nodes(key, ["n3", "n1"])[0]
        assert left == node or node == "n2"
