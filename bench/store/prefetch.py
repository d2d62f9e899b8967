"""Would bringing a chat's blocks back to dram before its next turn pay? On a trace, in blocks.

    python -m bench.store.prefetch TRACE.jsonl [--json]

Two tiers: dram of some capacity under LRU, over a disk that holds everything. Without a prefetcher
every reuse of a block that left dram waits for the disk. With one, a chat's blocks that have left
dram are read back so many seconds after its last turn, whoever must go for them. Printed are the
waits with and without, the reads that this costs, and how many of them nobody used.
"""

import argparse
import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BLOCK_TOKENS = 512
CAPACITIES_TOKENS = (1e6, 3e6, 10e6)
DELAYS_S = (15.0, 30.0, 60.0, 120.0)

Request = tuple[float, list[int]]  # (seconds, blocks head first)


@dataclass(frozen=True, slots=True)
class Outcome:
    capacity_tokens: float
    delay_s: float  # 0: no prefetcher
    waits: int  # reused blocks that had to come from the disk
    reads_ahead: int
    wasted: int  # of them: gone again before anybody used them


class TwoTiers:
    """dram over a disk, and a prefetcher that acts `delay_s` after each request."""

    def __init__(self, capacity_tokens: float, delay_s: float) -> None:
        self._capacity_tokens = capacity_tokens
        self._blocks_max = int(capacity_tokens / BLOCK_TOKENS)
        self._delay_s = delay_s
        self._dram: OrderedDict[int, None] = OrderedDict()
        self._used_s: dict[int, float] = {}
        self._ahead: set[int] = set()  # in dram, read ahead and unused since
        self._plans: deque[tuple[float, float, list[int]]] = deque()  # (when, stamp, blocks)
        self._waits = self._reads = self._wasted = 0

    def run(self, requests: Iterable[Request]) -> Outcome:
        for now_s, blocks in requests:
            while self._plans and self._plans[0][0] <= now_s:
                self._prefetch(*self._plans.popleft()[1:])
            for block in reversed(blocks):
                self._waits += block in self._used_s and block not in self._dram
                self._ahead.discard(block)
                self._put(block)
                self._used_s[block] = now_s
            if self._delay_s:
                self._plans.append((now_s + self._delay_s, now_s, blocks))
        return Outcome(self._capacity_tokens, self._delay_s, self._waits, self._reads, self._wasted)

    def _prefetch(self, stamp_s: float, blocks: Sequence[int]) -> None:
        """What nobody used since that request, and has left."""
        for block in reversed(blocks):
            if block not in self._dram and self._used_s[block] == stamp_s:
                self._reads += 1
                self._ahead.add(block)
                self._put(block)

    def _put(self, block: int) -> None:
        self._dram[block] = None
        self._dram.move_to_end(block)
        while len(self._dram) > self._blocks_max:
            gone, _ = self._dram.popitem(last=False)
            self._wasted += gone in self._ahead
            self._ahead.discard(gone)


def read_trace(path: Path) -> list[Request]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [(each["timestamp"] / 1000.0, each["hash_ids"]) for each in found]


def compare(requests: Sequence[Request]) -> list[Outcome]:
    return [
        TwoTiers(capacity, delay_s).run(requests)
        for capacity in CAPACITIES_TOKENS
        for delay_s in (0.0, *DELAYS_S)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Would reading a chat's blocks ahead pay?")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    outcomes = compare(read_trace(given.trace))
    if given.json:
        print(json.dumps([asdict(each) for each in outcomes]))
        return
    print(f"{'DRAM':>6} {'AFTER':>6} {'WAITS':>8} {'READS':>8} {'WASTED':>8}")
    for each in outcomes:
        print(
            f"{each.capacity_tokens / 1e6:>5.0f}M {each.delay_s:>5.0f}s {each.waits:>8} "
            f"{each.reads_ahead:>8} {each.wasted:>8}"
        )


if __name__ == "__main__":
    main()
