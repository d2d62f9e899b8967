"""Rounds in which the sides take turns, and what is made of them: medians, ratios, a table."""

import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

Side = Callable[[], Awaitable[Sequence[float]]]  # one round: seconds per operation


def say(line: str) -> None:
    """Progress, for whoever watches; stdout is for results."""
    print(line, file=sys.stderr, flush=True)


@dataclass
class Compared:
    """One operation, measured on two sides in the same rounds."""

    name: str
    ours: str  # what each side is
    theirs: str
    size_bytes: int  # moved by one operation
    ours_s: list[float] = field(default_factory=list)  # median of each round
    theirs_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How much faster we are: median over rounds of theirs / ours."""
        pairs = zip(self.theirs_s, self.ours_s, strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def row(self) -> dict[str, object]:
        """For the table beside the ratio."""
        ours_s, theirs_s = statistics.median(self.ours_s), statistics.median(self.theirs_s)
        ratios = [t / o for t, o in zip(self.theirs_s, self.ours_s, strict=True)]
        return {
            "ours": self.ours,
            "theirs": self.theirs,
            "bytes": self.size_bytes,
            "ours_us": round(ours_s * 1e6, 1),
            "theirs_us": round(theirs_s * 1e6, 1),
            "ours_gb_s": round(self.size_bytes / ours_s / 1e9, 3),
            "theirs_gb_s": round(self.size_bytes / theirs_s / 1e9, 3),
            "ratio": round(self.ratio, 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
            "rounds": len(ratios),
        }


async def compare(compared: Compared, ours: Side, theirs: Side, rounds: int) -> None:
    """ABBA: who goes first changes with every round. One round before is not counted."""
    await ours()
    await theirs()
    for number in range(rounds):
        sides = [(ours, compared.ours_s), (theirs, compared.theirs_s)]
        for side, out in sides if number % 2 == 0 else sides[::-1]:
            out.append(statistics.median(await side()))


def timed(do: Callable[[int], object], count: int) -> list[float]:
    """Seconds of `do(0)`, `do(1)`, .."""
    out = []
    for number in range(count):
        began_s = time.perf_counter()
        do(number)
        out.append(time.perf_counter() - began_s)
    return out


async def timed_async(do: Callable[[int], Awaitable[object]], count: int) -> list[float]:
    """As `timed`."""
    out = []
    for number in range(count):
        began_s = time.perf_counter()
        await do(number)
        out.append(time.perf_counter() - began_s)
    return out


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def table(rows: Mapping[str, Mapping[str, object]]) -> str:
    """Rows of one kind as text."""
    columns = list(next(iter(rows.values()))) if rows else []
    head = ["", *columns]
    body = [[name, *(str(row[c]) for c in columns)] for name, row in rows.items()]
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *body]
    )
