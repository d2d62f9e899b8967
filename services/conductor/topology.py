"""Topology: how far apart two members are, from the labels they registered with.

Labels only set what is expected of a link before anything was measured, and lend measurements to
links of the same distance; what a pair of members measured itself wins over both.
"""

from enum import StrEnum
from typing import NamedTuple


class Spot(NamedTuple):
    """Where somebody is; "" is not known."""

    host: str = ""
    rack: str = ""
    zone: str = ""


class Distance(StrEnum):
    HOST = "host"  # memory is shared
    RACK = "rack"  # one switch between them
    NET = "net"  # one zone, or nobody said
    ZONES = "zones"  # different zones


NOWHERE = Spot()
RANKS = {distance: rank for rank, distance in enumerate(Distance)}  # nearest first


def distance(a: Spot, b: Spot) -> Distance:
    """Racks of one name in different zones are different racks."""
    if a.host == b.host != "":
        return Distance.HOST
    if a.zone != b.zone and a.zone and b.zone:
        return Distance.ZONES
    return Distance.RACK if a.rack == b.rack != "" else Distance.NET
