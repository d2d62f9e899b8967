"""Small measures that every part of this benchmark uses."""

import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def seconds_each(inputs: Iterable[T], call: Callable[[T], object]) -> list[float]:
    """Seconds of each call, ranked."""
    took = []
    for each in inputs:
        before = time.perf_counter()
        call(each)
        took.append(time.perf_counter() - before)
    return sorted(took)


def quantile(ranked: list[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def quantiles_us(name: str, ranked: list[float]) -> dict[str, float]:
    """`NAME_us_p50` and `NAME_us_p99`."""
    return {
        f"{name}_us_p50": round(quantile(ranked, 0.5) * 1e6, 2),
        f"{name}_us_p99": round(quantile(ranked, 0.99) * 1e6, 2),
    }


def timed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
