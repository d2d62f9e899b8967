"""What one conductor is set to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """What the mesh promises, and its patience with silence."""

    slo_ttft_s: float
    slo_tbt_s: float
    suspect_after_s: float
    dead_after_s: float
    scheduling: str = "ours"  # one of policies.POLICY_NAMES
    admission: str = "ours"  # one of overload.GATE_NAMES
    second_look: bool = False  # decodes drop what does not fit any more once it is prefilled
    balancing_threshold: float = 1.0  # of the policy `global`: best prefix over own
    balancing: bool = False  # notes what copies of hot prefixes would save
