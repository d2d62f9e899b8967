"""The engine's names of blocks become ours, and what is held is counted right."""

from moonpool.kv import block_keys, foreign_root
from services.bridge.ledger import Ledger, held_changes
from services.bridge.order import Order, Verdict
from services.bridge.vllm_events import read_batch
from tests.unit.bridge.publisher import CLEARED, batch, removed, stored

TOKENS = list(range(100, 116))
KEYS = block_keys(foreign_root("m", 4), TOKENS, 4)


def make_ledger(*events: list[object]) -> Ledger:
    ledger = Ledger("m")
    held_changes(read_batch(batch(*events)).events, ledger)
    ledger.check()
    return ledger


def test_blocks_are_named_by_their_tokens_and_their_whole_prefix() -> None:
    ledger = make_ledger(
        stored([b"a", b"b"], None, TOKENS[:8]), stored([b"c", b"d"], b"b", TOKENS[8:])
    )
    assert list(ledger.keys("hbm")) == KEYS


def test_a_block_leaves_the_tier_that_lost_it_and_stays_in_the_other() -> None:
    ledger = make_ledger(
        stored([1, 2], None, TOKENS[:8]),
        stored([1, 2], None, TOKENS[:8], medium="CPU"),
        removed([1]),
    )
    assert list(ledger.keys("hbm")) == [KEYS[1]]
    assert list(ledger.keys("dram")) == KEYS[:2]


def test_a_child_of_an_evicted_parent_is_still_named_right() -> None:
    ledger = make_ledger(
        stored([1, 2], None, TOKENS[:8]), removed([1, 2]), stored([3], 2, TOKENS[8:12])
    )
    assert list(ledger.keys("hbm")) == [KEYS[2]]


def test_a_child_of_a_parent_that_nobody_told_is_left_out() -> None:
    ledger = make_ledger(stored([3], 2, TOKENS[8:12]), removed([3]))
    assert not ledger.keys("hbm")
    assert (ledger.orphans, ledger.unknown_removals) == (1, 1)


def test_adapters_and_extra_keys_never_share_a_name_with_the_plain_prompt() -> None:
    ledger = make_ledger(
        stored([1], None, TOKENS[:4]),
        stored([2], None, TOKENS[:4], lora_id=1, lora_name="l", extra_keys=[["l"]]),
        stored([3], None, TOKENS[:4], extra_keys=[["salt"]]),
    )
    held = list(ledger.keys("hbm"))
    assert len(set(held)) == 3
    assert held[0] == KEYS[0]
    assert held[1] == block_keys(foreign_root("m", 4, "l"), TOKENS[:4], 4)[0]


def test_two_of_the_engines_blocks_with_one_content_count_as_one() -> None:
    ledger = make_ledger(stored([1], None, TOKENS[:4]), stored([9], None, TOKENS[:4]), removed([1]))
    assert list(ledger.keys("hbm")) == KEYS[:1]
    held_changes(read_batch(batch(removed([9]))).events, ledger)
    assert not ledger.keys("hbm")


def test_partial_attention_groups_and_unknown_media_are_ignored() -> None:
    ledger = make_ledger(
        stored([1], None, TOKENS[:4], group_idx=1), stored([2], None, TOKENS[:4], medium="TAPE")
    )
    assert not ledger.keys("hbm")
    assert ledger.ignored == 2


def test_a_clear_empties_every_tier() -> None:
    ledger = make_ledger(
        stored([1], None, TOKENS[:4]), stored([1], None, TOKENS[:4], medium="CPU"), CLEARED
    )
    assert not ledger.keys("hbm")
    assert not ledger.keys("dram")


def test_a_lower_number_is_a_repeat_or_a_new_start_by_its_time() -> None:
    order = Order()
    assert order.judge(0, 10.0) is Verdict.NEXT
    order.took(0, 10.0)
    order.took(1, 11.0)
    assert order.judge(1, 11.0) is Verdict.SEEN
    assert order.judge(5, 12.0) is Verdict.GAP
    assert order.judge(0, 12.0) is Verdict.RESTART
