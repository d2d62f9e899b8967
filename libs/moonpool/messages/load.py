"""instances, nodes -> conductors: how busy (`mp.load.<id>`, 10 Hz and on change).

Samples are what really happened since the last report: the conductor's predictors learn from them.
"""

import msgspec


class ComputeSample(msgspec.Struct, frozen=True, array_like=True):
    """One prefill: seconds of compute for `new_tokens` after `cached_tokens`."""

    new_tokens: int
    cached_tokens: int
    seconds: float


class TransferSample(msgspec.Struct, frozen=True, array_like=True):
    source: str
    target: str
    tier: str
    size_bytes: int
    seconds: float


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One decode step: seconds for `sequences` with `context_tokens` in all."""

    sequences: int
    context_tokens: int
    seconds: float


class LoadReport(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    epoch: str
    seq: int
    state: str = "ready"  # "starting", "ready", "draining"
    # prefill side
    queued_requests: int = 0  # the one that runs included
    queued_tokens: int = 0  # still to compute
    # decode side
    running: int = 0  # sequences in the continuous batch
    reserved: int = 0  # places held for prompts still in prefill
    slots_total: int = 0
    context_tokens: int = 0  # of all running sequences
    # either
    blocks_free: int = 0  # unused or evictable right now
    blocks_total: int = 0
    # nodes: tier -> (bytes used, bytes total)
    tiers: dict[str, tuple[int, int]] = {}
    compute: list[ComputeSample] = []
    transfers: list[TransferSample] = []
    steps: list[StepSample] = []
