"""What the core asks of its shell after a step. Values; the shell does the I/O."""

from dataclasses import dataclass

from moonpool.instance.sequence import Sequence
from moonpool.kv import BlockKey
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.tokens import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell the gateway: a token, and whether it was the last."""

    sequence: Sequence
    index: int
    token: int
    finish: str  # "" while the answer goes on
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class BlockFilled:
    """A block of output is full and findable: write it to the store in the background.

    It carries a reference to the block: give it back with `InstanceCore.give_back`.
    """

    sequence: Sequence
    key: BlockKey
    block: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """The prompt is computed and its first token given: bring the KV to the decode, unless the
    answer is complete already. The sequence holds its blocks until `InstanceCore.end`."""

    sequence: Sequence
    finish: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The sequence is over with an error: tell the gateway."""

    sequence: Sequence
    error: MoonpoolError


Effect = Emit | BlockFilled | HandOver | Ended
