"""Real and virtual time behind one seam. Nothing else in Moonpool's cores reads a clock."""

from moonpool.clock.base import Clock
from moonpool.clock.real import RealClock
from moonpool.clock.virtual import VirtualClock

__all__ = ["Clock", "RealClock", "VirtualClock"]
