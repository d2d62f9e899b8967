"""Checks before anything starts: each says in one line what is missing and what to do."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from moonpool.settings import StoreSettings, WorkerSettings, load_settings
from services.cli.mesh import ports
from services.cli.mesh.errors import MachineTooSmall, MeshRefused
from services.cli.mesh.shape import MeshShape

DISK_FREE_MIN_BYTES = 1 << 30
PROCESS_BYTES = 350 << 20  # Python with torch loaded, measured
GIB = 1 << 30


def check_port(port: int) -> None:
    """Raises MeshRefused when the API could not listen there."""
    if port and not ports.is_free(port):
        raise MeshRefused(
            f"port {port} is taken by {ports.holder(port)}; "
            f"choose another: --port {ports.free_ports(1)[0]} (make up ARGS='--port ...')"
        )


def memory_needed_bytes(shape: MeshShape, env: Mapping[str, str], weights_bytes: int) -> int:
    """Pools, segments and weights at their full size. Raises SettingsError."""
    pool_bytes = load_settings(WorkerSettings, env).kv_pool_bytes
    dram_bytes = load_settings(StoreSettings, env).dram_bytes
    weights = weights_bytes * (2 if shape.dtype == "float32" else 1)
    return shape.instances * (pool_bytes + weights + PROCESS_BYTES) + shape.store * dram_bytes


def memory_free_bytes() -> int:
    """What the kernel would give us, or less where a control group says so."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def check_memory(shape: MeshShape, env: Mapping[str, str], weights_bytes: int) -> None:
    """Raises MachineTooSmall."""
    needed, free = memory_needed_bytes(shape, env, weights_bytes), memory_free_bytes()
    if needed > free:
        raise MachineTooSmall(
            f"{needed / GIB:.1f} GiB of memory needed and {free / GIB:.1f} GiB available; "
            "make the pools smaller (MOONPOOL_KV_POOL_BYTES, MOONPOOL_DRAM_BYTES), or start fewer "
            "instances (--colocated 1 alone is the small mode)"
        )


def check_disk(folder: Path) -> None:
    """Raises MachineTooSmall."""
    free = shutil.disk_usage(folder).free
    if free < DISK_FREE_MIN_BYTES:
        raise MachineTooSmall(
            f"{free / GIB:.2f} GiB free on the disk of {folder}; "
            f"{DISK_FREE_MIN_BYTES // GIB} GiB needed: free some, or name another --state-dir"
        )


def weights_bytes(model_folder: Path) -> int:
    return sum(path.stat().st_size for path in model_folder.glob("*.safetensors"))
