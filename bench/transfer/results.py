"""Medians of rounds, and the ratios that are made of them. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.transfer.shapes import BATCHES, KIB, MIB, SMALL, Shape, all_from, singles_from

OPS = ("read", "write")
Key = tuple[str, str, Shape]  # side, op, shape


@dataclass(frozen=True, slots=True)
class Promise:
    """`name` is ours over theirs, the worst of its shapes and both directions."""

    name: str
    ours: str
    theirs: str
    shapes: Sequence[Shape]
    at_least: float
    firm: bool = True  # False: aimed at, and reported


PROMISES = (
    Promise("shm_over_memcpy", "shm", "memcpy", all_from(MIB), 0.85),
    Promise("tcp_over_socket", "tcp", "socket", singles_from(4 * MIB), 1.0),
    Promise("tcp_over_mooncake", "tcp", "mooncake", all_from(256 * KIB), 1.5),
    Promise("tcp_batch_over_mooncake", "tcp", "mooncake", BATCHES[:2], 2.0),
    Promise("shm_over_nixl", "shm", "nixl_shm", all_from(MIB), 1.0, firm=False),
    Promise("tcp_over_nixl", "tcp", "nixl_tcp", all_from(MIB), 1.0, firm=False),
    Promise("over_gloo", "tcp", "gloo", all_from(64 * KIB), 1.0, firm=False),
)


class Results:
    """Every answer of every round."""

    def __init__(self) -> None:
        self._answers: dict[Key, list[dict[str, Any]]] = defaultdict(list)

    def add(self, key: Key, answer: dict[str, Any]) -> None:
        self._answers[key].append(answer)

    def median(self, key: Key, what: str = "gb_per_s") -> float | None:
        answers = self._answers.get(key)
        return median(answer[what] for answer in answers) if answers else None

    def ratio(self, promise: Promise) -> tuple[float, str] | None:
        """The worst, and where. None when one side has no figure."""
        found = []
        for shape in promise.shapes:
            for op in OPS:
                rounds = self._by_round((promise.ours, op, shape), (promise.theirs, op, shape))
                if rounds:
                    found.append((median(rounds), f"{op} of {shape}"))
        return min(found) if found else None

    def _by_round(self, ours: Key, theirs: Key) -> list[float]:
        """Round by round: what slows a moment down slows both."""
        pairs = zip(self._answers.get(ours, ()), self._answers.get(theirs, ()), strict=False)
        return [mine["gb_per_s"] / other["gb_per_s"] for mine, other in pairs]

    def table(self, sides: Sequence[str], shapes: Sequence[Shape]) -> list[dict[str, Any]]:
        """GB/s by shape and direction, one column per side."""
        rows = []
        for shape in shapes:
            for op in OPS:
                row: dict[str, Any] = {"shape": str(shape), "op": op}
                for side in sides:
                    value = self.median((side, op, shape))
                    row[side] = None if value is None else round(value, 3)
                rows.append(row)
        return rows

    def small_ops(self, sides: Sequence[str]) -> dict[str, dict[str, float]]:
        """Microseconds of one 4 KiB operation."""
        out: dict[str, dict[str, float]] = {}
        for side in sides:
            for op in OPS:
                for what in ("p50_us", "p99_us"):
                    value = self.median((side, op, SMALL), what)
                    if value is not None:
                        out.setdefault(side, {})[f"{op}_{what[:3]}"] = round(value, 1)
        return out


def shown(table: list[dict[str, Any]], sides: Sequence[str]) -> str:
    """For people."""
    lines = [f"{'GB/s':12} {'':5} " + " ".join(f"{side:>9}" for side in sides)]
    for row in table:
        cells = ("        -" if row[s] is None else f"{row[s]:9.2f}" for s in sides)
        lines.append(f"{row['shape']:12} {row['op']:5} " + " ".join(cells))
    return "\n".join(lines)
