"""Which build of torch to install, and from where. Never several GB by accident."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
REACHABLE_WITHIN_S = 6
PROBE = (
    "import os, ssl, sys, urllib.request as u;"
    "c = ssl.create_default_context(cafile=os.environ.get('PIP_CERT') or None);"
    "u.urlopen(u.Request(sys.argv[1], method='HEAD'), timeout=5, context=c)"
)


@dataclass(frozen=True)
class Source:
    name: str  # for people
    arguments: list[str]  # of `pip install`


def gpu_present() -> bool:
    """True where an NVIDIA driver is loaded and shows a device."""
    if any(Path("/proc/driver/nvidia/gpus").glob("*")):
        return True
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return False
    try:
        listed = subprocess.run([smi, "-L"], capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return listed.returncode == 0 and b"GPU" in listed.stdout


def choose(choice: str, wanted: str, have: str) -> str | None:
    """ "cpu" or "cuda": the build to install; None when `have` will do."""
    release, _, local = have.partition("+")
    build = choice if choice != "auto" else ("cuda" if gpu_present() else "cpu")
    if release != wanted:
        return build
    if build == "cuda":
        return "cuda" if local == "cpu" else None
    # A default build that somebody chose also runs on the CPU: `auto` leaves it alone.
    return "cpu" if choice == "cpu" and local != "cpu" else None


def source_for(build: str, wanted: str, python: Path) -> Source | None:
    """Where to take it from; None when the CPU build is nowhere to be had."""
    if build == "cuda":
        # "+cpu" would sort above the default build where a local folder holds it.
        return Source("the package index (several GB)", [f"torch=={wanted},!={wanted}+cpu"])
    pinned = f"torch=={wanted}+cpu"
    for folder in _wheel_folders(python):
        if any(folder.glob(f"torch-{wanted}+cpu-cp311-*{platform.machine()}.whl")):
            arguments = ["--no-deps", "--no-index", "--find-links", str(folder), pinned]
            return Source(f"the wheel folder {folder}", arguments)
    print(f"asking PyTorch's CPU index ({REACHABLE_WITHIN_S} s at most)", flush=True)
    if _reachable(python):
        return Source("PyTorch's CPU index", ["--no-deps", "--index-url", CPU_INDEX, pinned])
    print("it can't be reached; looking in the index that pip is configured with", flush=True)
    if _configured_index_has(pinned, python):
        return Source("pip's configured index", ["--no-deps", pinned])
    return None


def no_source_text(wanted: str) -> str:
    return (
        f"no CPU build of torch {wanted}: {CPU_INDEX} can't be reached, and neither pip's wheel "
        "folders nor its index hold it. Either put the wheel into a folder and name it "
        "(PIP_FIND_LINKS=/folder make setup), or take the default build, which is several GB and "
        "also runs on the CPU: make setup TORCH=cuda"
    )


def _wheel_folders(python: Path) -> Iterator[Path]:
    """Local folders among pip's `find-links`."""
    asked = subprocess.run(
        [str(python), "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    entries = os.environ.get("PIP_FIND_LINKS", "").split()
    if asked.returncode == 0:
        entries += asked.stdout.split()
    for entry in entries:
        url = urlparse(entry)
        if url.scheme in ("", "file"):
            folder = Path(unquote(url.path))
            if folder.is_dir():
                yield folder


def _reachable(python: Path) -> bool:
    """A process of its own, because a name lookup has no time limit."""
    try:
        asked = subprocess.run(
            [str(python), "-c", PROBE, f"{CPU_INDEX}/torch/"],
            capture_output=True,
            timeout=REACHABLE_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def _configured_index_has(pinned: str, python: Path) -> bool:
    quick = ["--timeout", "10", "--retries", "1", "--no-deps", "--dry-run", "--quiet"]
    try:
        asked = subprocess.run(
            [str(python), "-m", "pip", "install", *quick, pinned],
            capture_output=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
