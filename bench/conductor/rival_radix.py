"""The rival's side, run by an interpreter that has it: a line of JSON in, a line of JSON out.

    {"do": "build", "blocks": N} | {"do": "match", "blocks": 64, "calls": N, "turn": N, "hit": BOOL}

Its tree takes 64-bit hashes, so each block is named by the head of its key.
"""

import json
import struct
import sys
import time
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

prompts = import_module("chains")
RadixTree = import_module("dynamo.llm").RadixTree


def hashes(packed: bytes) -> list[int]:
    words = struct.unpack(f"<{len(packed) // 8}Q", packed)
    return [word >> 1 for word in words[::2]]


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Side:
    def __init__(self) -> None:
        self.tree = RadixTree()
        self.chains: dict[int, list[bytes]] = {}

    def build(self, blocks: int) -> dict[str, float]:
        self.chains = prompts.make_chains(blocks)
        messages = [
            (owner, self._event(number, before, keys))
            for number, (owner, before, keys) in enumerate(prompts.events(self.chains))
        ]
        probe = hashes(self.chains[prompts.SHORT][-1])
        before_bytes = resident_bytes()
        start = time.perf_counter()
        for owner, message in messages:
            self.tree.apply_event(owner, message)
        self.tree.find_matches(probe)  # waits until all events have been applied
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "bytes": resident_bytes() - before_bytes}

    def match(self, blocks: int, calls: int, turn: int, hit: bool) -> dict[str, list[float]]:
        chains = self.chains[blocks]
        if hit:
            asked = [hashes(chains[at]) for at in prompts.choose(chains, calls, turn)]
        else:
            asked = [hashes(packed) for packed in prompts.misses(blocks, turn)]
        took = []
        for each in asked:
            before = time.perf_counter()
            found = self.tree.find_matches(each)
            took.append(time.perf_counter() - before)
        scores = list(found.scores.values())
        assert scores == ([blocks] if hit else []), scores
        return {"ranked": sorted(took)}

    def _event(self, number: int, before: bytes, keys: bytes) -> bytes:
        stored = {
            "parent_hash": hashes(before)[0] if before else None,
            "blocks": [{"block_hash": h, "tokens_hash": h} for h in hashes(keys)],
        }
        event = {"event_id": number, "data": {"stored": stored}, "dp_rank": 0}
        return json.dumps(event).encode()


def main() -> None:
    side = Side()
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(side, order.pop("do"))(**order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
