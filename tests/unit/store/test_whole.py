"""Small objects in a message, and objects that take over a key: scene by scene."""

import pytest

from moonpool.cache import make_policy
from moonpool.kv import BlockKey
from moonpool.kv.checksum import checksum_of
from moonpool.messages.ids import TenantId
from moonpool.messages.store import (
    INLINE_MAX_BYTES,
    GetStartRequest,
    PutEndItem,
    PutItem,
    WholeItem,
)
from services.store.core import StoreCore
from services.store.errors import BadRequest
from services.store.limits import Limits
from services.store.tiers import DramTier
from services.store.whole import put_whole, with_data

ACME, OTHER = TenantId("acme"), TenantId("other")
TIER_BYTES = 1 << 20
KEY = BlockKey(bytes(16))


class Node:
    """A core and the memory that it decides over."""

    def __init__(self) -> None:
        self.core = StoreCore(DramTier(TIER_BYTES), make_policy("lru"), Limits(headroom=0.0))
        self.segment = memoryview(bytearray(TIER_BYTES))

    def put(self, *items: WholeItem, tenant: TenantId = ACME) -> list[str]:
        results = put_whole(self.core, self.segment, tenant, items, 0.0)
        self.core.check()
        return results

    def get(
        self, key: BlockKey = KEY, inline: int = INLINE_MAX_BYTES, room: int = 1 << 20
    ) -> bytes:
        _, slots = self.core.get_start(ACME, [key], 0.0, 0.0)
        request = GetStartRequest(ACME, key, inline_bytes=inline, tail_bytes=4)
        with_data(self.core, self.segment, request, [key], slots, room)
        return slots[0].data


def item(
    data: bytes, *, key: BlockKey = KEY, replace: bool = False, expected: int = 0
) -> WholeItem:
    return WholeItem(key, data, checksum_of(data), replace, expected)


def generation(node: Node) -> int:
    return node.core.get_start(ACME, [KEY], 0.0, 0.0)[1][0].generation


def test_an_object_comes_back_whole_or_by_its_tail() -> None:
    node = Node()
    assert node.put(item(b"some bytes"), item(b"more", key=BlockKey(b"k" * 16))) == [
        "committed", "committed",
    ]  # fmt: skip
    assert node.get() == b"some bytes"
    assert node.get(inline=9) == b"ytes"
    assert node.get(room=5) == b""
    assert node.get(BlockKey(b"?" * 16)) == b""


def test_a_taken_key_stays_and_a_wrong_checksum_is_refused() -> None:
    node = Node()
    assert node.put(item(b"first")) == ["committed"]
    assert node.put(item(b"second")) == ["exists"]
    assert node.put(WholeItem(KEY, b"third", checksum_of(b"other"), True)) == ["corrupt"]
    assert node.get() == b"first"


def test_a_replaced_object_stays_as_it_is_to_those_who_read_it() -> None:
    node = Node()
    node.put(item(b"first"))
    lease, slots = node.core.get_start(ACME, [KEY], 10.0, 0.0)
    assert node.put(item(b"second", replace=True)) == ["committed"]
    at = slots[0].offset
    assert bytes(node.segment[at : at + 5]) == b"first"
    assert node.core.get_end(lease, 1.0)
    assert node.get() == b"second"
    assert node.core.stats().tiers[0].blocks == 1
    node.core.check()


def test_only_the_generation_that_was_expected_is_replaced() -> None:
    node = Node()
    assert node.put(item(b"new", replace=True, expected=1)) == ["changed"]
    node.put(item(b"first"))
    first = generation(node)
    assert node.put(item(b"second", replace=True, expected=first)) == ["committed"]
    assert node.put(item(b"third", replace=True, expected=first)) == ["changed"]
    assert node.get() == b"second"


def test_a_put_under_way_and_another_tenant_are_not_overrun() -> None:
    node = Node()
    put, slots = node.core.put_start(ACME, [PutItem(KEY, 100, 100)], 10.0, 0.0)
    assert node.put(item(b"second", replace=True)) == ["busy"]
    commit = node.core.begin_commit(put, [PutEndItem(KEY, slots[0].generation, b"checksum")], 0.0)
    assert node.put(item(b"second", replace=True)) == ["busy"]
    assert node.core.finish_commit(commit, [True], 0.0) == ["committed"]
    assert node.put(item(b"theirs", replace=True), tenant=OTHER) == ["exists"]
    assert node.put(item(b"second", replace=True)) == ["committed"]
    assert node.get() == b"second"


def test_a_large_object_takes_over_a_key_as_it_is_verified() -> None:
    node, hidden = Node(), BlockKey(b"hidden key 16 by")
    node.put(item(b"first"))
    put, slots = node.core.put_start(ACME, [PutItem(hidden, 50_000, 50_000)], 10.0, 0.0)
    assert node.get() == b"first"
    end = PutEndItem(hidden, slots[0].generation, b"checksum", KEY)
    commit = node.core.begin_commit(put, [end], 0.0)
    assert node.get() == b"first"
    assert node.core.finish_commit(commit, [True], 0.0) == ["committed"]
    node.core.check()
    assert node.core.live_keys() == [KEY]
    assert node.core.residents.objects[KEY].size_bytes == 50_000


def test_nonsense_is_refused_before_anything_changes() -> None:
    node = Node()
    for bad in [item(b""), item(b"x" * (INLINE_MAX_BYTES + 1)), item(b"x", key=BlockKey(b"short"))]:
        with pytest.raises(BadRequest):
            node.put(item(b"good"), bad)
    assert node.core.live_keys() == []
