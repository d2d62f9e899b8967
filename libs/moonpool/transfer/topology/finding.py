"""The topology of this host, found or told."""

from dataclasses import replace
from pathlib import Path

from moonpool.transfer.errors import BadTopology
from moonpool.transfer.topology.machine import matrix_of
from moonpool.transfer.topology.matrix import Topology
from moonpool.transfer.topology.mooncake import parse
from moonpool.transfer.topology.sysfs import read_machine

SYSFS = Path("/sys")
FILE_BYTES_MAX = 1 << 20


def discover(root: Path = SYSFS) -> Topology:
    """From sysfs."""
    return matrix_of(read_machine(root))


def load(told: str, root: Path = SYSFS) -> Topology:
    """What `told` says, Mooncake's JSON or a file of it; "": discovered. Raises BadTopology, which
    names the file."""
    found = discover(root)
    if not told:
        return found
    given = parse(told) if told.lstrip().startswith("{") else _read(told)
    return replace(given, aliases=found.aliases)


def _read(file: str) -> Topology:
    try:
        data = Path(file).read_bytes()
        if len(data) > FILE_BYTES_MAX:
            raise BadTopology(f"has {len(data)} bytes, more than {FILE_BYTES_MAX}")
        return parse(data.decode("utf-8"))
    except OSError as error:
        raise BadTopology(f"topology file {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadTopology(f"topology file {file}: not UTF-8") from error
    except BadTopology as error:
        raise BadTopology(f"topology file {file}: {error.message}") from error
