"""The index: events, memory, matches, alone and beside the rival's tree, on one core.

Rounds take turns, so that a slow moment of the machine meets both. A match finds by search who
holds how much; `confirm` then looks at every block that a choice rests on, once per decision.
"""

import gc
import statistics
from collections.abc import Callable

from bench.conductor.chains import KEY_BYTES, LONG, OWNERS, SHORT, choose, events, make_chains
from bench.conductor.chains import misses as missing_prompts
from bench.conductor.rival import Rival
from bench.conductor.timing import quantile, quantiles_us, resident_bytes, seconds_each, timed
from moonpool.messages.codec import decode, encode
from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import OwnerId
from services.conductor.holdings import Holdings
from services.conductor.index import BlockIndex

ROUNDS = 5
SWEEP_KEYS = 100_000
Results = dict[str, float | str]
Side = Callable[[int, bool, int], list[float]]  # (blocks, hit, turn) -> ranked seconds


def bench_index(blocks: int, calls: int, rival: Rival | str) -> Results:
    """`rival` is asked in turn, or is the reason why there is none."""
    chains = make_chains(blocks)
    holdings = Holdings()
    index, known = holdings.index, [OwnerId(f"o{i}") for i in range(OWNERS)]
    for owner in known:
        holdings.begin_life(owner, "e")
        holdings.begin_snapshot(owner)
        holdings.apply_page(SnapshotPage(owner, "e", 0, {}), "e")
    messages = _messages(chains, known)
    gc.collect()
    before_bytes = resident_bytes()
    stored_s = timed(lambda: [holdings.apply(decode(each, KvEvents)) for each in messages])
    bytes_per_block = (resident_bytes() - before_bytes) / len(index)
    assert len(index) == sum(len(c) for cs in chains.values() for c in cs) // KEY_BYTES
    results: Results = {
        "index_blocks": len(index),
        "events_blocks_per_s": round(len(index) / stored_s),
        "memory_bytes_per_block": round(bytes_per_block, 1),
    }
    ours = _our_side(holdings, chains, calls)
    if isinstance(rival, str):
        results |= _matches(ours) | {"dynamo": f"not measured: {rival}"}
    else:
        built = rival.ask("build", blocks=blocks)
        results |= _matches(ours, _their_side(rival, calls))
        results["dynamo_events_blocks_per_s"] = round(len(index) / built["seconds"])
        results["dynamo_memory_bytes_per_block"] = round(built["bytes"] / len(index), 1)
        results["events_over_dynamo"] = round(built["seconds"] / stored_s, 2)
    return results | _whole_batches(index, chains, holdings)


def _messages(chains: dict[int, list[bytes]], owners: list[OwnerId]) -> list[bytes]:
    """Every event as it travels, numbered per owner."""
    seqs = dict.fromkeys(range(OWNERS), 0)
    made = []
    for owner, _, keys in events(chains):
        seqs[owner] += 1
        made.append(encode(KvEvents(owners[owner], "e", seqs[owner], "dram", stored=keys)))
    return made


def _our_side(holdings: Holdings, chains: dict[int, list[bytes]], calls: int) -> Side:
    def measure(blocks: int, hit: bool, turn: int) -> list[float]:
        known = chains[blocks]
        asked = [known[at] for at in choose(known, calls, turn)]
        if not hit:
            asked = missing_prompts(blocks, turn)
        took = seconds_each(asked, holdings.match)
        assert holdings.match(asked[-1]).end == (blocks if hit else 0)
        return took

    return measure


def _their_side(rival: Rival, calls: int) -> Side:
    def measure(blocks: int, hit: bool, turn: int) -> list[float]:
        answer = rival.ask("match", blocks=blocks, calls=calls, turn=turn, hit=hit)
        ranked: list[float] = answer["ranked"]
        return ranked

    return measure


def _matches(ours: Side, theirs: Side | None = None) -> Results:
    results: Results = {}
    for blocks in (SHORT, LONG):
        for hit, word in ((True, "match"), (False, "miss")):
            own, other = [], []
            for turn in range(ROUNDS):
                own.append(ours(blocks, hit, turn))
                if theirs:
                    other.append(theirs(blocks, hit, turn))
            results |= quantiles_us(f"{word}_{blocks}", _median_round(own))
            if other:
                results |= quantiles_us(f"dynamo_{word}_{blocks}", _median_round(other))
                ratios = [
                    quantile(b, 0.5) / quantile(a, 0.5) for a, b in zip(own, other, strict=True)
                ]
                name = f"{word}_{blocks}_over_dynamo"
                results[name] = round(statistics.median(ratios), 2)
    if theirs:
        results["match_over_dynamo"] = results[f"match_{SHORT}_over_dynamo"]
    return results


def _median_round(rounds: list[list[float]]) -> list[float]:
    return sorted(rounds, key=lambda ranked: quantile(ranked, 0.5))[len(rounds) // 2]


def _whole_batches(
    index: BlockIndex, chains: dict[int, list[bytes]], holdings: Holdings
) -> Results:
    """What a decision confirms, replicas, removals, and the sweep after an owner's end."""
    results: Results = {}
    for blocks, known in chains.items():
        asked = [
            (known[at], holdings.match(known[at]).segments[0].mask) for at in choose(known, 300, 0)
        ]
        took = seconds_each(asked, lambda each: index.confirm(*each, 0, len(each[0]) // KEY_BYTES))
        results |= quantiles_us(f"confirm_{blocks}", took)
    replica = index.places.take(OwnerId("replica"), "hbm")
    every = [packed for each in chains.values() for packed in each]
    blocks_held = len(index)
    stored_s = timed(lambda: [index.store(replica, packed) for packed in every])
    results["events_replica_blocks_per_s"] = round(blocks_held / stored_s)
    gone = every[::4]
    removed = sum(map(len, gone)) // KEY_BYTES
    removed_s = timed(lambda: [index.remove(replica, packed) for packed in gone])
    results["events_removed_blocks_per_s"] = round(removed / removed_s)
    index.retire(replica)
    results["sweep_s"] = round(timed(lambda: _sweep(index)), 3)
    return results


def _sweep(index: BlockIndex) -> None:
    while not index.sweep(SWEEP_KEYS):
        pass
