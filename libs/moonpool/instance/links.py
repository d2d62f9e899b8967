"""What the moving parts of an instance share: the bus, the transfer engine, the pool's memory."""

from concurrent.futures import Executor
from dataclasses import dataclass

from moonpool.client.blocks import BlockStore
from moonpool.instance.memory import PoolMemory
from moonpool.instance.observe import Observations
from moonpool.instance.sums import SumCache
from moonpool.runtime import ServiceContext
from moonpool.settings import WorkerSettings
from moonpool.transfer.base import TransferEngineProtocol


@dataclass(frozen=True, slots=True)
class Links:
    ctx: ServiceContext[WorkerSettings]
    transfer: TransferEngineProtocol
    blocks: BlockStore
    memory: PoolMemory
    sums: SumCache
    seen: Observations
    # for checksums and copies to and from an accelerator: work that must not block the event loop
    helpers: Executor
