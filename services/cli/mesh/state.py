"""Where a local mesh keeps its files, and what it writes down there for other commands."""

import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from services.cli.mesh.errors import MeshRefused

RECORD = "mesh.json"
LOCK = "lock"
LOGS = "logs"
DATA = ("nats", "s3")


def default_state_dir(name: str = "default") -> Path:
    """`$XDG_STATE_HOME/moonpool/NAME`, or under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "moonpool" / name


@dataclass(slots=True)
class MeshRecord:
    """What other commands need to know of a running mesh."""

    pid: int  # of the launcher
    url: str
    nats_url: str
    mesh: str
    model: str
    logs: str
    ready: bool = False
    s3_url: str = ""
    s3_access_key: str = ""
    s3_secret_key: str = ""
    pids: dict[str, int] = field(default_factory=dict)


class StateFolder:
    """One mesh at a time owns it; logs stay behind, everything else goes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock_fd = -1

    @property
    def logs(self) -> Path:
        return self.root / LOGS

    def acquire(self) -> None:
        """Raises MeshRefused when a mesh runs from this folder."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock_fd = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            record = self.read()
            where = f" at {record.url} (pid {record.pid})" if record else ""
            raise MeshRefused(
                f"a mesh already runs{where}; stop it with `moonpool down`, "
                "or start another beside it: --name OTHER --port PORT"
            ) from None
        self._lock_fd = lock_fd
        self.clear()
        self.logs.mkdir(exist_ok=True)
        for old in self.logs.glob("*.log"):
            if old.name != "launcher.log":  # a detached launcher is writing it already
                old.unlink()

    def folder(self, name: str) -> Path:
        """Where a server keeps its data while the mesh lives; `name` is one of DATA."""
        assert name in DATA
        path = self.root / name
        path.mkdir(exist_ok=True)
        return path

    def write(self, record: MeshRecord) -> None:
        """Readable by its owner only: it holds the S3 keys."""
        fresh = self.root / f"{RECORD}.new"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(record), file, indent=2)
        fresh.replace(self.root / RECORD)

    def read(self) -> MeshRecord | None:
        """None when no mesh was started here, or it is still writing its first record."""
        try:
            return MeshRecord(**json.loads((self.root / RECORD).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def held(self) -> bool:
        """True while some launcher owns this folder."""
        try:
            lock_fd = os.open(self.root / LOCK, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock_fd)
        return False

    def passing(self) -> list[Path]:
        """All that has to go when the mesh ends."""
        return [self.root / name for name in (*DATA, RECORD, LOCK)]

    def clear(self) -> None:
        """Removes what a mesh that did not end well left here; never anything else."""
        for path in self.passing():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)

    def release(self) -> None:
        """Removes everything but the logs. Idempotent."""
        if self._lock_fd >= 0:
            self.clear()
            (self.root / LOCK).unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = -1
