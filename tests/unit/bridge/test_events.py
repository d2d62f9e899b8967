"""vLLM's batches, as its versions write them."""

import msgspec
import pytest

from moonpool.messages.codec import MalformedMessage
from services.bridge.vllm_events import Cleared, Removed, Stored, read_batch
from tests.unit.bridge.publisher import CLEARED, batch, removed, stored


def test_arrays_and_maps_say_the_same() -> None:
    arrays = read_batch(batch(stored([1, 2], None, list(range(8))), removed([1]), CLEARED))
    maps = read_batch(
        msgspec.msgpack.encode(
            {
                "ts": 1.0,
                "events": [
                    {
                        "type": "BlockStored",
                        "block_hashes": [1, 2],
                        "parent_block_hash": None,
                        "token_ids": list(range(8)),
                        "block_size": 4,
                        "lora_id": None,
                        "medium": None,
                        "lora_name": None,
                    },
                    {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
                    {"type": "AllBlocksCleared"},
                ],
                "data_parallel_rank": 0,
            }
        )
    )
    assert arrays == maps
    kinds = [type(event) for event in maps.events]
    assert kinds == [Stored, Removed, Cleared]


def test_an_early_version_without_medium_is_read() -> None:
    raw = [2.5, [["BlockStored", [b"h"], b"parent", [1, 2], 2, None], ["BlockRemoved", [b"h"]]]]
    event = read_batch(msgspec.msgpack.encode(raw)).events[0]
    assert isinstance(event, Stored)
    assert (event.parent, event.medium, event.group) == (b"parent", "", 0)


def test_kinds_that_we_do_not_know_are_left_out() -> None:
    assert read_batch(batch(["BlockRenamed", [1]], CLEARED)).events == (Cleared(),)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xff",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, [7]]),
        msgspec.msgpack.encode(["late", []]),
        batch(["BlockStored", [1]]),
        batch(stored([1, 2], None, [1, 2, 3])),
        batch(stored([1], None, ["a", "b", "c", "d"])),
        batch(stored([1], None, [1, 2, 3, 4], block_tokens=0)),
        batch(stored([1.5], None, [1, 2, 3, 4])),
        batch(stored([1], None, [1, 2, 3, 4], extra_keys=[None, None])),
    ],
)
def test_what_is_no_batch_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_batch(raw)
