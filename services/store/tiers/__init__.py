"""Where a node's blocks may lie: one file per tier behind one protocol.

Called by the node's core for places; the bytes themselves are moved by the shell or by peers.
"""

from services.store.tiers.base import Ledger, LowerTier, Tier
from services.store.tiers.dram import DramTier
from services.store.tiers.nvme import NvmeTier
from services.store.tiers.oss import OssTier

__all__ = ["DramTier", "Ledger", "LowerTier", "NvmeTier", "OssTier", "Tier"]
