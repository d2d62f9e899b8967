"""What samples of a process say about leaks. Pure."""

from collections.abc import Sequence
from statistics import median

Sample = dict[str, float]
# How much the last quarter may be above the second one: a share, and a fixed amount.
ALLOWED = {
    "anon_mib": (0.10, 12.0),
    "descriptors": (0.0, 12.0),
    "threads": (0.0, 8.0),
    "regions": (0.0, 4.0),
}


def figures(samples: Sequence[Sample]) -> dict[str, tuple[float, float, float]]:
    """(near the start, in the middle, at the end), each a median, by name."""
    third = max(1, len(samples) // 4)
    parts = (samples[:third], samples[third : 2 * third] or samples, samples[-third:])
    return {
        name: tuple(median(sample[name] for sample in part) for part in parts)  # type: ignore[misc]
        for name in ALLOWED
    }


def leaks(samples: Sequence[Sample]) -> list[str]:
    """Sentences, none when all is well. The start does not count: caches fill."""
    found = []
    for name, (_, before, after) in figures(samples).items():
        share, fixed = ALLOWED[name]
        if after > before * (1 + share) + fixed:
            found.append(f"{name} rose from {before:g} to {after:g}")
    return found


def troubles(counted: dict[str, float]) -> list[str]:
    """What must never happen at all."""
    out = [f"{counted[name]:g} {name}" for name in ("damage", "hangs") if counted.get(name)]
    if not counted.get("batches"):
        out.append("no batch was done")
    return out
