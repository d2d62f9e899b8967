"""Admission modes: given the best way to run a request, is it worth beginning?

The core asks one of them per plan; the simulator compares them. `ours` serves; the others are the
papers' and exist to be compared with. They see predictions and promises, never a clock.
"""

from services.conductor.overload.base import Gate, Offer
from services.conductor.overload.registry import GATE_NAMES, make_gate

__all__ = ["GATE_NAMES", "Gate", "Offer", "make_gate"]
