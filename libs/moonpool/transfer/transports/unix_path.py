"""Unix sockets in a folder, whatever the length of its path."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from moonpool.transfer.errors import BadTransfer

ADDRESS_BYTES_MAX = 107  # sun_path, without its final zero


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """An address for `bind` and `connect`, valid inside the block: the path itself, or one through
    a descriptor of its folder when it is too long for the kernel. Raises OSError."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            with reachable(path) as address:
                probe.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # somebody is there, if only too busy to answer
    return True


def connect(path: Path, hello: bytes) -> socket.socket:
    """A socket that does not block, with `hello` on its way. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        with reachable(path) as address:
            sock.connect(address)
        sock.send(hello)
    except OSError:
        sock.close()
        raise
    return sock


def listen(path: Path, backlog: int) -> socket.socket:
    """A listening socket at `path`, mode 0600. A file that a dead process left is replaced; one
    that a living process serves raises BadTransfer."""
    if path.exists() and _answers(path):
        raise BadTransfer(f"another transfer engine already serves {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        with reachable(fresh) as address:
            sock.bind(address)
        fresh.chmod(0o600)
        sock.listen(backlog)
        fresh.replace(path)  # atomic: a peer sees the old file or the new one, never none
    except OSError as error:
        sock.close()
        fresh.unlink(missing_ok=True)
        raise BadTransfer(f"cannot listen at {path}: {error.strerror}") from error
    return sock
