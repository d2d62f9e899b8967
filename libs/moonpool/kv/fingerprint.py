"""The model fingerprint: everything that changes the bytes of KV or their meaning.

It is the root of every block key, so blocks of different models can never be taken for
one another, and instances that differ are refused by name at registration.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import NewType

from moonpool.kv.layout import BlockLayout

Fingerprint = NewType("Fingerprint", bytes)

LAYOUT_VERSION = 1  # of `[layer][k|v][token][kv_head][head_dim]`


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What the fingerprint covers. Field by field comparable, so that a refusal can say why."""

    model: str  # id as users name it
    revision: str
    weights_digest: str  # hex SHA-256 over the weights' files
    layout: BlockLayout
    rope: str  # canonical JSON of the rope settings
    adapter: str = ""
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    layout_version: int = LAYOUT_VERSION

    def fingerprint(self) -> Fingerprint:
        """SHA-256 over the canonical JSON of all fields. 32 bytes."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return Fingerprint(hashlib.sha256(text.encode()).digest())

    def differences(self, other: "ModelIdentity") -> list[str]:
        """Fields in which two identities differ, as `name: ours != theirs`, for error texts."""
        ours, theirs = asdict(self), asdict(other)
        return [f"{k}: {ours[k]} != {theirs[k]}" for k in ours if ours[k] != theirs[k]]
