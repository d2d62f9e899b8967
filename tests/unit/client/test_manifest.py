"""Where stripes lie, and how that is written down."""

import pytest

from moonpool.client import CorruptValue
from moonpool.client.manifest import new_manifest, pack, unpack
from moonpool.kv import BlockKey

KEY = BlockKey(bytes(16))


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 101, 1000, 1001])
def test_a_manifest_comes_back(size_bytes: int) -> None:
    manifest = new_manifest(size_bytes, 100, ["a", "b", "c"], 2)
    assert unpack(pack(manifest)) == manifest
    assert sum(manifest.part_bytes(i) for i in range(len(manifest.places))) == size_bytes


def test_stripes_and_copies_go_round_all_nodes() -> None:
    manifest = new_manifest(500, 100, ["a", "b", "c"], 2)
    assert manifest.places == [["a", "b"], ["b", "c"], ["c", "a"], ["a", "b"], ["b", "c"]]
    assert {n: len(k) for n, k in manifest.by_node(KEY).items()} == {"a": 3, "b": 4, "c": 3}
    assert new_manifest(500, 100, ["a"], 3).places == [["a"]] * 5


def test_no_two_versions_share_a_part() -> None:
    one, two = (new_manifest(500, 100, ["a"], 1) for _ in range(2))
    assert not set(one.part_keys(KEY)) & set(two.part_keys(KEY))


def test_a_manifest_for_a_gigabyte_on_many_nodes_fits_a_message() -> None:
    nodes = [f"store-with-a-long-name-{n}" for n in range(64)]
    assert len(pack(new_manifest(1 << 30, 16 << 20, nodes, 3))) < 8 << 10


def test_nonsense_is_corruption_and_not_a_crash() -> None:
    good = pack(new_manifest(500, 100, ["a", "b"], 1))
    lone = new_manifest(500, 100, ["a"], 1)
    for bad in [b"", b"1234567", good[:-1], good[:8] + b"\xc0", bytes(8) + good[8:],
                pack(type(lone)(500, lone.version, 100, [["a"]] * 4 + [[]]))]:  # fmt: skip
        with pytest.raises(CorruptValue):
            unpack(bad)
