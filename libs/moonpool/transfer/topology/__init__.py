"""Which NICs are near which memory: found in sysfs, or told in Mooncake's own JSON. All of it is
pure but for reading the files."""

from moonpool.transfer.topology.finding import discover, load
from moonpool.transfer.topology.machine import Gpu, Machine, Nic, Place, matrix_of
from moonpool.transfer.topology.matrix import OTHER, PREFERRED, UNNAMED, Row, Topology
from moonpool.transfer.topology.mooncake import is_location, parse, render
from moonpool.transfer.topology.sysfs import read_machine

__all__ = [
    "OTHER",
    "PREFERRED",
    "UNNAMED",
    "Gpu",
    "Machine",
    "Nic",
    "Place",
    "Row",
    "Topology",
    "discover",
    "is_location",
    "load",
    "matrix_of",
    "parse",
    "read_machine",
    "render",
]
