"""What one simulated run is made of."""

from dataclasses import dataclass

NO_LIMIT_S = 1e6


@dataclass(frozen=True, slots=True)
class Setup:
    """One mesh under one way of scheduling and admitting."""

    prefills: int
    decodes: int
    policy: str = "ours"
    admission: str = "ours"
    threshold: float = 1.0  # of the policy `global`
    slo_ttft_s: float = NO_LIMIT_S
    slo_tbt_s: float = NO_LIMIT_S
    eviction: str = "lru"
    seed: int = 1
    second_look: bool = True  # decodes drop what would break their promise, as in the paper
    balancing: bool = False  # copies of hot prefixes are made in the background
    checked: bool = False  # all invariants, every second of virtual time
