"""What the parts of a store client share."""

from dataclasses import dataclass, field

from moonpool.client.blocks import BlockStore
from moonpool.client.lines import Lines
from moonpool.client.manifest import STRIPE_BYTES
from moonpool.client.mesh import Mesh
from moonpool.client.sources import Sources
from moonpool.client.staging import Staging
from moonpool.kv import BlockKey
from moonpool.kv.named import named_key
from moonpool.messages import TenantId
from moonpool.transfer.base import TransferEngineProtocol


@dataclass(frozen=True)
class Kit:
    blocks: BlockStore
    mesh: Mesh
    transfer: TransferEngineProtocol
    staging: Staging
    sources: Sources
    lines: Lines
    tenant: TenantId
    salt: bytes = field(default=b"", repr=False)
    stripe_bytes: int = STRIPE_BYTES

    def key(self, name: str) -> BlockKey:
        return named_key(self.tenant, name, self.salt)
