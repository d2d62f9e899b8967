"""Whether this machine has the memory that a segment of the wanted size will fill."""

from pathlib import Path

import psutil

from moonpool.messages.errors import CallerError

_CGROUP_MAX = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


class TooLittleMemory(CallerError):
    code = "too_little_memory"


def require_memory(size_bytes: int) -> None:
    """Raises TooLittleMemory in one line that says what there is and what to set."""
    free_bytes = available_bytes()
    if size_bytes > free_bytes:
        raise TooLittleMemory(
            f"MOONPOOL_DRAM_BYTES={size_bytes} does not fit: {free_bytes} bytes of memory are "
            f"available; set it to at most {free_bytes * 9 // 10}, or free some"
        )


def available_bytes() -> int:
    """What the machine, or the container's limit where that is lower, can still give."""
    free_bytes = int(psutil.virtual_memory().available)
    try:
        limit = _CGROUP_MAX.read_text(encoding="ascii").strip()
        used = int(_CGROUP_USED.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return free_bytes
    return free_bytes if limit == "max" else min(free_bytes, max(0, int(limit) - used))
