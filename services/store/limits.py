"""The node's bounds, as its core sees them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    put_ttl_max_s: float = 30.0  # an unfinished put is reclaimed after it
    lease_max_s: float = 60.0
    headroom: float = 0.2  # share of the tier kept free for bursts, 0 <= headroom < 1
    hard_pin_share_max: float = 0.5  # of the tier
    soft_pin_max_s: float = 86_400.0
    puts_max: int = 65_536
    leases_max: int = 262_144
    keys_max: int = 16_384  # per message
    demote_after_uses: int = 2  # a put is one; what was used less is not worth a lower tier
    demote_by: str = "uses"  # who says what is worth one (see moonpool.cache.make_admission)
