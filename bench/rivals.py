"""The rivals that benchmarks run beside us, each set in an environment of its own.

Nothing of theirs enters the project's `.venv`. What cannot be installed or loaded here is a value
with a reason, which the benchmark prints: a missing rival is told, never left out silently.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL_TIMEOUT_S = 900
ASK_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Rivals:
    """One environment: what goes in, and how to see that it works."""

    name: str
    packages: tuple[str, ...]  # pinned
    without_deps: tuple[str, ...] = ()  # pinned, taken alone
    libraries: tuple[str, ...] = ()  # Debian packages that their binaries load
    proof: str = ""  # Python that must run there


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A rival that cannot run here."""

    why: str


MOONCAKE = Rivals(
    name="mooncake",
    packages=("numpy==2.3.5", "aiohttp==3.13.2", "requests==2.32.5"),
    without_deps=("mooncake-transfer-engine-non-cuda==0.3.13.post1",),
    libraries=(
        "libibverbs1",
        "libnuma1",
        "librdmacm1",
        "libcurl4",
        "liburing2",
        "libjsoncpp25",
        "libgflags2.2",
        "libgoogle-glog0v6",
        "libunwind8",
    ),
    proof="import mooncake.engine, mooncake.store",
)
NIXL = Rivals(
    name="nixl",
    packages=("numpy==2.3.5", "torch==2.13.0"),
    without_deps=("nixl==1.5.1", "nixl-cu12==1.5.1"),
    libraries=("libibverbs1", "libnuma1", "librdmacm1"),
    proof="from nixl._api import nixl_agent",
)
DYNAMO = Rivals(
    name="dynamo",
    packages=("ai-dynamo-runtime==1.6.1",),
    proof="from dynamo.llm import RadixTree",
)


def python_with(rivals: Rivals) -> Path | Unavailable:
    """The interpreter that has `rivals`, installed on first use under
    `$MOONPOOL_BENCH_DIR` (default: the user's cache)."""
    home = _home() / f"{rivals.name}-{_digest(rivals)}"
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        try:
            _install(rivals, home, python)
        except (OSError, subprocess.SubprocessError) as error:
            return Unavailable(f"{rivals.name} cannot be installed here: {_told(error)}")
    try:
        _run([str(python), "-c", rivals.proof], ASK_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return Unavailable(f"{rivals.name} does not load here: {_told(error)}")
    (home / "ready").touch()
    return python


def _home() -> Path:
    named = os.environ.get("MOONPOOL_BENCH_DIR")
    return Path(named) if named else Path.home() / ".cache" / "moonpool-bench"


def _digest(rivals: Rivals) -> str:
    return hashlib.sha256(repr(rivals).encode()).hexdigest()[:8]


def _install(rivals: Rivals, home: Path, python: Path) -> None:
    _add_libraries(rivals.libraries)
    home.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)], INSTALL_TIMEOUT_S)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if rivals.packages:
        _run([*pip, *rivals.packages], INSTALL_TIMEOUT_S)
    if rivals.without_deps:
        _run([*pip, "--no-deps", *rivals.without_deps], INSTALL_TIMEOUT_S)


def _add_libraries(names: Sequence[str]) -> None:
    """Debian packages that are missing, where we are root; elsewhere `proof` will tell."""
    if not names or os.geteuid() != 0 or shutil.which("dpkg-query") is None:
        return
    missing = [
        n for n in names if subprocess.run(["dpkg-query", "-W", n], capture_output=True).returncode
    ]
    if missing:
        _run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
            INSTALL_TIMEOUT_S,
        )


def _run(command: Sequence[str], timeout_s: float) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout_s)


def _told(error: Exception) -> str:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return (said or str(error)).strip().splitlines()[-1][:300]
