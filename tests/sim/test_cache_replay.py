"""Replaying a trace: what hits, what is repeated, and that Belady's optimum is one."""

import itertools
import json
from pathlib import Path

import pytest

from moonpool.cache import LruPolicy, make_policy
from services.conductor.simulate.cache.belady import BeladyPolicy
from services.conductor.simulate.cache.program import NAMES
from services.conductor.simulate.cache.replay import Replay
from services.conductor.simulate.cache.trace import (
    BLOCK_TOKENS,
    BadTrace,
    Request,
    parse_trace,
    read_trace,
    repeat,
)


def make_request(at_s: float, *blocks: int, tokens: int = 0) -> Request:
    return Request(at_s, tokens or len(blocks) * BLOCK_TOKENS, list(blocks))


def test_only_the_leading_run_of_blocks_hits() -> None:
    replay = Replay(LruPolicy(), 3)
    replay.ask(make_request(0.0, 1, 2, 3))
    replay.ask(make_request(1.0, 1, 9))  # drives out 3, the tail
    replay.ask(make_request(2.0, 1, 2, 3))
    assert replay.tally.tokens_hit == (0 + 1 + 2) * BLOCK_TOKENS
    assert replay.tally.blocks_missed == 3 + 1 + 1


def test_a_partial_block_counts_its_tokens_and_takes_a_whole_place() -> None:
    replay = Replay(LruPolicy(), 2)
    for at in range(2):
        replay.ask(make_request(float(at), 1, 2, tokens=BLOCK_TOKENS + 10))
    assert replay.tally.token_hit_rate == 0.5
    replay.ask(make_request(3.0, 3))
    assert replay.tally.evictions == 1


def test_blocks_in_which_prompts_end_can_be_left_out() -> None:
    replay = Replay(LruPolicy(), 9, full_blocks_only=True)
    for at in range(2):
        replay.ask(make_request(float(at), 1, 2, tokens=BLOCK_TOKENS + 10))
    assert replay.tally.tokens_hit == BLOCK_TOKENS


def test_a_repeated_trace_has_fresh_ids_but_for_what_all_share() -> None:
    requests = [make_request(float(at), 0, at + 1) for at in range(1000)]
    repeated = repeat(requests, 3)
    assert len(repeated) == 3000
    assert all(request.blocks[0] == 0 for request in repeated)
    assert len({request.blocks[1] for request in repeated}) == 3000
    times = [request.arrived_s for request in repeated]
    assert times == sorted(times)
    assert repeat(requests, 1) == requests


def optimum(requests: list[Request], blocks_max: int) -> int:
    """Most hits that any choice of victims allows, by trying all; each prompt is one block."""
    best = {frozenset[int](): 0}
    for request in requests:
        (block,) = request.blocks
        after: dict[frozenset[int], int] = {}
        for here, hits in best.items():
            full = here | {block}
            for kept in itertools.combinations(full, min(blocks_max, len(full))):
                key = frozenset(kept)
                after[key] = max(after.get(key, -1), hits + (block in here))
        best = after
    return max(best.values())


@pytest.mark.parametrize("seed", range(6))
def test_belady_is_the_optimum_and_no_policy_beats_it(seed: int) -> None:
    state, requests = seed + 1, list[Request]()
    for at in range(30):
        state = state * 48271 % 2147483647
        requests.append(make_request(float(at), state % 6))
    hits = {}
    for name in NAMES:
        replay = Replay(BeladyPolicy(requests) if name == "belady" else make_policy(name, 3), 3)
        for request in requests:
            replay.ask(request)
        hits[name] = replay.tally.blocks - replay.tally.blocks_missed
    assert hits["belady"] == optimum(requests, 3)
    assert max(hits.values()) == hits["belady"]


def test_a_line_that_is_no_request_is_named(tmp_path: Path) -> None:
    good = json.dumps({"timestamp": 500, "input_length": 600, "hash_ids": [1, 2]})
    assert list(parse_trace([good, ""])) == [make_request(0.5, 1, 2, tokens=600)]
    for bad in ("{", "[]", '{"timestamp": 1}', good.replace("600", "0")):
        with pytest.raises(BadTrace, match="line 2"):
            list(parse_trace([good, bad]))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(BadTrace, match="no request"):
        read_trace(empty)
