"""Several NICs to one peer, used together: who carries which slice. `Spray` and what it is made of
are pure; transports use `SprayedPath`, and simulations the same `Spray` on virtual time."""

from moonpool.transfer.spraying.pairs import LocalNic, Pair, pair_up
from moonpool.transfer.spraying.path import Lane, SprayedPath, sprayed_stats
from moonpool.transfer.spraying.sizes import slice_bytes
from moonpool.transfer.spraying.spray import Handed, Spray
from moonpool.transfer.spraying.way import Load, NicLoad, Way

__all__ = [
    "Handed",
    "Lane",
    "Load",
    "LocalNic",
    "NicLoad",
    "Pair",
    "Spray",
    "SprayedPath",
    "Way",
    "pair_up",
    "slice_bytes",
    "sprayed_stats",
]
