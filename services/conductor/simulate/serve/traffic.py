"""Traffic: requests as the simulated gateway sees them, from a trace.

Published traces name blocks by number; here each number is a 16-byte key, as on the wire. A trace
whose times are coarse ticks is spread evenly within them, by seed: nobody sends ten prompts in one
instant and then none for three seconds.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from services.conductor.simulate.cache.trace import BadTrace

TICKED_SHARE = 0.5  # fewer distinct times than this share of the requests: they are ticks
_KEY_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class Ask:
    """One request of a trace."""

    number: int
    arrived_s: float
    prompt_tokens: int
    output_tokens: int  # >= 1
    blocks: list[int]  # numbers of the full blocks of the prompt
    tenant: str = "trace"


@dataclass(slots=True)
class Traffic:
    """All requests, in order of time, and the keys of their blocks."""

    name: str
    asks: list[Ask]
    block_tokens: int
    keys: dict[int, bytes] = field(default_factory=dict)

    def packed(self, blocks: Iterable[int]) -> bytes:
        """Keys of these blocks as they travel."""
        return b"".join(map(self.keys.__getitem__, blocks))

    @property
    def span_s(self) -> float:
        return self.asks[-1].arrived_s - self.asks[0].arrived_s if self.asks else 0.0

    def sped_up(self, speed: float) -> "Traffic":
        """The same requests in less time."""
        if speed == 1.0:
            return self
        asks = [
            Ask(a.number, a.arrived_s / speed, a.prompt_tokens, a.output_tokens, a.blocks, a.tenant)
            for a in self.asks
        ]
        return Traffic(self.name, asks, self.block_tokens, self.keys)

    def first(self, count: int) -> "Traffic":
        return Traffic(self.name, self.asks[:count], self.block_tokens, self.keys)


def read_traffic(path: Path, block_tokens: int, seed: int = 1) -> Traffic:
    """Raises BadTrace, OSError."""
    asks: list[Ask] = []
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                asks.append(_ask(line, number, len(asks), block_tokens))
    if not asks:
        raise BadTrace(f"{path} holds no request")
    return make_traffic(path.stem, asks, block_tokens, seed)


def make_traffic(name: str, asks: Sequence[Ask], block_tokens: int, seed: int = 1) -> Traffic:
    """Requests in order of time, with keys for their blocks."""
    ordered = _spread(sorted(asks, key=lambda ask: (ask.arrived_s, ask.number)), seed)
    for number, ask in enumerate(ordered):
        ask.number = number
    numbers = {block for ask in ordered for block in ask.blocks}
    keys = {block: _key(block) for block in numbers}
    return Traffic(name, ordered, block_tokens, keys)


def _ask(line: str, number: int, index: int, block_tokens: int) -> Ask:
    try:
        fields = json.loads(line)
        tokens = int(fields["input_length"])
        blocks = [int(block) for block in fields["hash_ids"]]
        output = max(1, int(fields.get("output_length", 1)))
        arrived_s = float(fields["timestamp"]) / 1000.0
        tenant = str(fields.get("tenant", "trace"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadTrace(f"line {number} is no request: {error!r}") from None
    if tokens < 1 or min(blocks, default=0) < 0:
        raise BadTrace(f"line {number} has a prompt of {tokens} tokens")
    return Ask(index, arrived_s, tokens, output, blocks[: tokens // block_tokens], tenant)


def _spread(asks: list[Ask], seed: int) -> list[Ask]:
    """Times within each tick, where the trace has ticks."""
    times = sorted({ask.arrived_s for ask in asks})
    if len(times) < 2 or len(times) >= TICKED_SHARE * len(asks):
        return asks
    gaps = sorted(later - sooner for sooner, later in pairwise(times))
    tick_s = gaps[len(gaps) // 2]
    dice = random.Random(f"ticks:{seed}")
    for ask in asks:
        ask.arrived_s += dice.random() * tick_s
    return sorted(asks, key=lambda ask: (ask.arrived_s, ask.number))


def _key(block: int) -> bytes:
    """16 bytes whose head spreads evenly, as a digest's does."""
    head = (block + 1) * _KEY_MIX & _WORD
    head ^= head >> 29
    return head.to_bytes(8, "little") + block.to_bytes(8, "little")
