"""gateway -> decode: hold a place (`mp.decode.<id>.reserve`); prefill -> decode: go (`.start`)."""

import msgspec

from moonpool.messages.errors import ErrorInfo
from moonpool.messages.ids import NodeId, RequestId, TenantId
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.segments import RegionGrant


class ReserveRequest(msgspec.Struct, frozen=True):
    request: RequestId
    attempt: int
    tenant: TenantId
    fingerprint: bytes
    keys: bytes  # packed keys of all full blocks of the prompt
    prompt_tokens: int
    max_tokens: int
    ttl_s: float  # the place is freed when no `start` came by then


class ReserveReply(msgspec.Struct, frozen=True):
    """A place in the decode's pool, or a refusal: the decode is the authority over its slots."""

    refusal: ErrorInfo | None = None
    decode: str = ""  # the instance that holds the place
    # Device block numbers for the whole prompt, partial tail included. The first `have_blocks`
    # are already there (its own prefix cache) and must not be written.
    blocks: tuple[int, ...] = ()
    have_blocks: int = 0
    grant: RegionGrant | None = None  # over the whole pool: offsets follow from the block layout


class StartRequest(msgspec.Struct, frozen=True):
    """All KV of the prompt has been written: verify it and continue the answer.

    `checksums` holds one little-endian u64 xxh3 per (block, layer) for the blocks from
    `have_blocks` on, block-major: a block that fails is refused by name and nothing is decoded.
    """

    request: RequestId
    attempt: int
    tenant: TenantId
    root: bytes
    keys: bytes
    tokens: bytes  # prompt as submitted, little-endian int32, without the new token
    output_start: int
    first_token: int  # sampled by prefill, already sent to the gateway; its KV does not exist yet
    checksums: bytes
    sampling: SamplingParams
    store: NodeId | None
    deadline_s: float


class StartReply(msgspec.Struct, frozen=True):
    refusal: ErrorInfo | None = None  # code `corrupt`: prefill may push the blocks again
    bad_blocks: tuple[int, ...] = ()  # indexes into the prompt's blocks
