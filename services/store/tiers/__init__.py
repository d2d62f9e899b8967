"""Where a node's blocks may lie: one file per tier behind one protocol.

Called by the node's core for places; the bytes themselves are moved by the shell or by peers.
"""

from services.store.tiers.base import Tier
from services.store.tiers.dram import DramTier

__all__ = ["DramTier", "Tier"]
