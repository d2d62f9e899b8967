"""Request traces as lines of JSON: `timestamp` (ms), `input_length` and `hash_ids`, the numbers of
the prompt's blocks of 512 tokens, prefix-chained; the last block may be partial."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512
STEADY_PASSES = 3
SHARED_USES = 1000  # blocks used so often in one pass are the same in every pass


class BadTrace(Exception):
    """A file that is no trace; names the line."""


@dataclass(frozen=True, slots=True)
class Request:
    arrived_s: float
    input_tokens: int  # (len(blocks) - 1) * BLOCK_TOKENS < input_tokens
    blocks: list[int]  # ids, head first

    @property
    def ends_inside(self) -> bool:
        """The prompt ends inside its last block."""
        return self.input_tokens < len(self.blocks) * BLOCK_TOKENS


def read_trace(path: Path) -> list[Request]:
    """Raises BadTrace, OSError."""
    with path.open() as lines:
        requests = list(parse_trace(lines))
    if not requests:
        raise BadTrace(f"{path} holds no request")
    return requests


def parse_trace(lines: Iterable[str]) -> Iterator[Request]:
    """Raises BadTrace."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            blocks = [int(block) for block in fields["hash_ids"]]
            request = Request(
                float(fields["timestamp"]) / 1000.0, int(fields["input_length"]), blocks
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BadTrace(f"line {number} is no request: {error!r}") from None
        if request.input_tokens < 1:
            raise BadTrace(f"line {number} has a prompt of {request.input_tokens} tokens")
        yield request


def repeat(requests: list[Request], passes: int) -> list[Request]:
    """The trace so many times back to back, with fresh ids each time but for shared blocks: the
    service goes on, with other users and the same system prompts."""
    uses = Counter(block for request in requests for block in request.blocks)
    shared = {block for block, count in uses.items() if count >= SHARED_USES}
    ids = max(uses, default=0) + 1
    span_s = requests[-1].arrived_s - requests[0].arrived_s
    span_s += span_s / max(len(requests) - 1, 1)
    repeated = list(requests)
    for turn in range(1, passes):
        for each in requests:
            blocks = [b if b in shared else b + turn * ids for b in each.blocks]
            repeated.append(Request(each.arrived_s + turn * span_s, each.input_tokens, blocks))
    return repeated
