"""instances, nodes -> conductors: how busy (`mp.load.<id>`, 10 Hz and on change).

Samples are what really happened since the last report: the conductor's predictors learn from them.
"""

import zlib

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


class AnswerSample(msgspec.Struct, frozen=True, array_like=True):
    """One answer that ended at a decode, however it ended."""

    tag: int  # `request_tag` of its request
    tenant: str
    tokens: int  # of this attempt's output


class QueuedPrompt(msgspec.Struct, frozen=True, array_like=True):
    """One prompt that waits or is being computed at a prefill."""

    new_tokens: int  # still to compute
    cached_tokens: int  # before them
    due_in_s: float  # from the report on; those due earlier come first. May be over
    tag: int = 0  # `request_tag` of its request


def request_tag(request: str) -> int:
    """A short name of a request, by which a conductor knows its own plans in load reports."""
    return zlib.crc32(request.encode())


PROMPTS_MAX = 64  # queued prompts that a report names; of more, the last due are left out


class LoadReport(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    epoch: str
    seq: int
    state: str = "ready"  # "starting", "ready", "draining"
    duty: str = ""  # of a colocated instance: "both", "prefill", "decode"; "": as its role says
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
    answers: list[AnswerSample] = []
    prompts: list[QueuedPrompt] = []  # in the order of their turns
