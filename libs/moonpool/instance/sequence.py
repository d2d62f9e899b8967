"""One request inside an instance: its tokens, its blocks, and how far it has come.

tokens   |<------------ prompt ------------>|<--- output --->|
KV       [0, matched) from our own pool | [matched, fetched) from other owners | computed here
         |<----------------- computed ----------------->|
blocks   cover at least [0, computed); the last one may be partial
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from moonpool.kv import BlockKey, next_key
from moonpool.messages.ids import NodeId, RequestId, TenantId
from moonpool.messages.sampling import SamplingParams


class Phase(StrEnum):
    QUEUED = "queued"  # waits for blocks
    LOADING = "loading"  # has blocks; the shell finds out what can be fetched
    PREFILL = "prefill"  # may be stepped, chunk by chunk
    HANDOVER = "handover"  # prompt computed; KV on its way to the decode
    RESERVED = "reserved"  # a decode's place, prompt still being computed elsewhere
    RUNNING = "running"  # in the continuous batch
    CLOSING = "closing"  # answer complete; one last step fills the block it ends in
    ENDING = "ending"  # over, but somebody still reads or writes its blocks
    DONE = "done"  # holds nothing any more


@dataclass(slots=True, eq=False)
class Sequence:
    request: RequestId
    attempt: int
    tenant: TenantId
    root: bytes
    keys: list[BlockKey]  # of the full blocks of `tokens`, extended as blocks fill
    block_tokens: int
    prompt_tokens: int
    output_start: int  # tokens[output_start:] is output, of earlier attempts too
    sampling: SamplingParams
    deadline_s: float  # on the instance's clock
    store: NodeId | None = None
    decodes_here: bool = False  # the decode is this very instance
    phase: Phase = Phase.QUEUED
    blocks: list[int] = field(default_factory=list)
    matched_blocks: int = 0  # leading blocks found in our own pool
    fetched_blocks: int = 0  # leading blocks present once the fetch is done; >= matched_blocks
    computed: int = 0  # tokens whose KV is in `blocks`
    published_blocks: int = 0  # leading blocks findable in the pool
    loaded: bool = True  # no fetch is running into our blocks
    # Who reads or writes its blocks right now: a step, a fetch, a push, a remote writer. Blocks are
    # freed only at 0, so that no late write can land in a block that belongs to somebody else.
    users: int = 0
    in_step: bool = False
    quarantined: bool = False  # its remote writer may still write: see InstanceCore.expire
    queued_at_s: float = 0.0
    patience_s: float = 0.0  # its turn among prompts is due this long after it was queued
    level: int = 1  # class of its priority; 0 is the highest
    weight: float = 1.0  # its tenant's share of the instance, next to others'
    start_by_s: float = math.inf  # not begun by then, it is refused
    tag: float = -1.0  # of the queue: see `queueing`
    started_at_s: float = 0.0  # first step
    _tokens: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    _length: int = 0

    def set_tokens(self, tokens: NDArray[np.int32], room: int) -> None:
        """The prompt, and room for `room` tokens of output."""
        self._tokens = np.empty(len(tokens) + room, np.int32)
        self._tokens[: len(tokens)] = tokens
        self._length = len(tokens)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """A view of all tokens so far."""
        return self._tokens[: self._length]

    @property
    def length(self) -> int:
        return self._length

    @property
    def next_index(self) -> int:
        """Index in the whole output of the token that comes next."""
        return self._length - self.output_start

    @property
    def due_s(self) -> float:
        """Prompts are computed in this order. Fixed at the door: who comes later and is due later
        never gets ahead, so nobody starves."""
        return self.queued_at_s + self.patience_s

    @property
    def not_begun(self) -> bool:
        """A prompt of which nothing has been computed here."""
        waiting = (Phase.QUEUED, Phase.LOADING, Phase.PREFILL)
        return self.phase in waiting and self.tag < 0.0

    def append(self, token: int) -> None:
        if self._length == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(64, np.int32)])
        self._tokens[self._length] = token
        self._length += 1

    def key_at(self, block: int) -> BlockKey:
        """Key of full block number `block`, computed on demand for blocks of output."""
        while len(self.keys) <= block:
            start = len(self.keys) * self.block_tokens
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(next_key(parent, self.tokens[start : start + self.block_tokens]))
        return self.keys[block]

    @property
    def id(self) -> tuple[RequestId, int]:
        return (self.request, self.attempt)
