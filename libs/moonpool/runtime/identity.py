"""Who this process is: its id on the mesh, its epoch, and the host it runs on."""

import hashlib
import socket
from pathlib import Path
from secrets import token_hex

from moonpool.messages.ids import check_id

_MACHINE_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


def new_id(role: str, wanted: str) -> str:
    """`wanted`, or the role and a random suffix. CallerError when it cannot be a subject token."""
    return check_id(wanted or f"{role}-{token_hex(3)}", "id")


def new_epoch() -> str:
    """Never the same twice."""
    return token_hex(8)


def host_id(wanted: str) -> str:
    """`wanted`, or a digest of the machine's id and its boot: equal for all processes of one
    running machine, and different for machines cloned from one image."""
    if wanted:
        return check_id(wanted, "host_id")
    machine = next((text for path in _MACHINE_FILES if (text := _text_of(path))), "")
    boot = _text_of(_BOOT_FILE)
    named = f"{machine}/{boot}" if machine or boot else socket.gethostname()
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def advertise_host(wanted: str) -> str:
    """`wanted`, where `hostname` stands for this machine's own: names are looked up anew at each
    connection, so they stay right when the address changes. Several may stand there, with commas
    between."""
    names = [name.strip() for name in wanted.split(",")]
    return ",".join(socket.gethostname() if name == "hostname" else name for name in names)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
