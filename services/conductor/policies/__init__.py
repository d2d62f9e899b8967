"""Scheduling policies: given all candidates, which prefill and which decode run a request.

The core asks one of them per plan; the simulator compares them. `ours` serves; the others are the
papers' and exist to be compared with. A policy never refuses: admission does.
"""

from services.conductor.policies.base import Choice, SchedulingPolicy, View
from services.conductor.policies.registry import POLICY_NAMES, make_policy

__all__ = ["POLICY_NAMES", "Choice", "SchedulingPolicy", "View", "make_policy"]
