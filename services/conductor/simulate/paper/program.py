"""`simulate paper`: one figure of the papers."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from services.conductor.simulate.cache.trace import BadTrace
from services.conductor.simulate.paper.figures import (
    FIGURES,
    REJECTION_MESH,
    REJECTION_SPEED,
    Bench,
    Figure,
)
from services.conductor.simulate.serve.machine import BadMachine, load_machine

if TYPE_CHECKING:
    Parts = argparse._SubParsersAction[argparse.ArgumentParser]


def add(parts: "Parts") -> None:
    parser = parts.add_parser("paper", help="the Mooncake papers' experiments, side by side")
    parser.add_argument("figure", choices=list(FIGURES))
    parser.add_argument("--traces", type=Path, help="a folder with NAME_trace.jsonl")
    parser.add_argument("--requests", type=int, default=0, help="of each trace (default: all)")
    parser.add_argument("--mesh", type=_mesh, help="of rejection: 8P6D (the default)")
    parser.add_argument("--speed", type=_speed, help="of rejection: times the trace's (2.3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machine", default="a800")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """0; 1 when a trace or the machine cannot be used, 2 when options do not go together."""
    if given.figure != "rejection" and (given.mesh or given.speed):
        print("simulate paper: --mesh and --speed belong to rejection alone", file=sys.stderr)
        return 2
    mesh, speed = given.mesh or REJECTION_MESH, given.speed or REJECTION_SPEED
    try:
        machine = load_machine(given.machine)
        bench = Bench(machine, given.traces, given.requests, given.seed, mesh, speed)
        figure = FIGURES[given.figure](bench)
    except (BadTrace, BadMachine, OSError) as error:
        print(f"simulate paper: {error}", file=sys.stderr)
        return 1
    figure.assumed += bench.assumed
    print(render(figure))
    if given.json:
        rows = [dict(zip(_unique(figure.columns), row, strict=True)) for row in figure.rows]
        print(json.dumps({"figure": given.figure, "rows": rows, "assumed": figure.assumed}))
    return 0


def render(figure: Figure) -> str:
    """A table for people."""
    cells = [figure.columns, *([_cell(value) for value in row] for row in figure.rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(figure.columns))]
    lines = [figure.title]
    for row in cells:
        first, *rest = zip(row, widths, strict=True)
        line = first[0].ljust(first[1])
        lines.append(line + "".join("  " + text.rjust(width) for text, width in rest))
    lines += [f"* {text}" for text in figure.assumed]
    return "\n".join(lines)


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _mesh(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,2})P([1-9]\d{0,2})D", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no mesh like 8P6D")
    return int(found[1]), int(found[2])


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return speed


def _unique(columns: list[str]) -> list[str]:
    """Column names, those that come again with whose they are."""
    whose, names = "", []
    for column in columns:
        head, _, tail = column.partition(": ")
        if tail:
            whose, column = head, tail
        name = f"{whose} {column}".strip() if whose else column
        names.append(name if name not in names else f"here {column}")
    return names
