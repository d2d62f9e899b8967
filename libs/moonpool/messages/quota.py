"""A tenant's share of each store node: JSON in the mesh's bucket of quotas, one entry per tenant.

Whoever sets quotas writes there; every node watches and enforces its own.
"""

from typing import Literal

import msgspec

from moonpool.messages.codec import MalformedMessage
from moonpool.messages.errors import CallerError


class TenantQuota(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes on each node; None: no limit but the node's own."""

    dram_bytes: int | None = None
    nvme_bytes: int | None = None
    oss_bytes: int | None = None  # in the bucket that nodes share
    hard_bytes: int | None = None  # pinned hard, wherever they lie
    # At the limit: "refuse" what is new, or "evict" the tenant's own oldest blocks for it.
    over: Literal["refuse", "evict"] = "refuse"

    def of_tier(self, tier: str) -> int | None:
        """The limit in `tier`: dram, nvme or oss."""
        limit: int | None = getattr(self, f"{tier}_bytes", None)
        return limit


def quotas_bucket(mesh: str) -> str:
    """Name of the key-value bucket of a mesh's quotas."""
    return f"{mesh}_quotas"


def pins_bucket(mesh: str) -> str:
    """Of its hard pins: `<tenant>.<key in hex>` -> how many nodes are to hold the block."""
    return f"{mesh}_pins"


def encode_quota(quota: TenantQuota) -> bytes:
    """Raises CallerError when a limit is negative."""
    for name in ("dram_bytes", "nvme_bytes", "oss_bytes", "hard_bytes"):
        limit = getattr(quota, name)
        if limit is not None and limit < 0:
            raise CallerError(f"{name} must not be negative, but is {limit}")
    return msgspec.json.encode(quota)


def decode_quota(raw: bytes) -> TenantQuota:
    """Raises MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=TenantQuota)
    except msgspec.DecodeError as error:
        raise MalformedMessage(f"not a quota: {error}") from error
