"""`moonpool topology`: which NICs of this host are near which memory."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_verb

if TYPE_CHECKING:
    from moonpool.transfer.topology import Machine, Topology
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool topology                     as the kernel says, or as $MOONPOOL_TOPOLOGY says
  moonpool topology --json > FILE       Mooncake's own format: edit it, then MOONPOOL_TOPOLOGY=FILE
  moonpool topology --given FILE        is the file right?
  moonpool topology --sysfs COPY        of another host, from a copy of its /sys
"""
SETTING = "MOONPOOL_TOPOLOGY"


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "topology", "show which NICs are near which memory", EXAMPLES, run)
    parser.add_argument(
        "--given",
        default=os.environ.get(SETTING, ""),
        metavar="FILE",
        help=f"a file in Mooncake's format, or the JSON itself (default: ${SETTING})",
    )
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), help="read this tree (/sys)")
    add_json_option(parser)


def run(given: argparse.Namespace) -> int:
    from moonpool.transfer.topology import load, read_machine, render

    topology = load(given.given, given.sysfs)
    if given.json:
        print(render(topology))
        return 0
    machine = read_machine(given.sysfs)
    print("\n".join([*_matrix(topology), "", *_devices(machine)]))
    for name in _strangers(topology, machine):
        print(f"\n{name} is named above, and this host has no such NIC")
    return 0


def _matrix(topology: "Topology") -> list[str]:
    return _table(
        ("MEMORY", "PREFERRED", "OTHER"),
        [
            (location, " ".join(row.preferred) or "-", " ".join(row.others) or "-")
            for location, row in topology.rows.items()
        ],
    )


def _devices(machine: "Machine") -> list[str]:
    rows = [
        (nic.name, nic.kind, _node(nic.place.numa_node), _bus(nic.place.buses), _state(nic.up))
        for nic in machine.nics
    ]
    rows += [
        (gpu.location, "gpu", _node(gpu.place.numa_node), gpu.address, "") for gpu in machine.gpus
    ]
    return _table(("DEVICE", "KIND", "NUMA", "PCI", "LINK"), rows)


def _strangers(topology: "Topology", machine: "Machine") -> list[str]:
    """Names in the matrix that no NIC of this host has."""
    known = {nic.name for nic in machine.nics}
    named = {name for row in topology.rows.values() for name in (*row.preferred, *row.others)}
    return sorted(named - known)


def _node(number: int) -> str:
    return str(number) if number >= 0 else "any"


def _bus(buses: tuple[str, ...]) -> str:
    return buses[-1] if buses else "-"


def _state(up: bool) -> str:
    return "up" if up else "down"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
