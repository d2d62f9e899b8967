"""Real and virtual time behind one seam. Nothing else in Moonpool's cores reads a clock."""

from moonpool.clock.base import Clock

__all__ = ["Clock"]
