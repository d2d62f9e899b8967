"""Two processes on loopback, ours and everybody else's, in turns: `python -m bench.transfer`.

In a round every side does every size once, all sides of one size right after one another. Speeds
are medians over rounds; a ratio is the median of ours over theirs in the same round, and of those
the worst over the sizes that it is promised for and over both directions.
"""

import argparse
import json
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from bench.transfer import crew, results, shapes
from bench.transfer.crew import SIDES, Crew, Side
from bench.transfer.results import OPS, PROMISES, Results

BASELINES = {
    "memcpy": "memmove between two memory files in one process",
    "socket": "one pair of plain blocking tcp sockets, buffers of 1 MiB",
    "mooncake": "mooncake-transfer-engine-non-cuda, protocol tcp",
    "nixl_shm": "nixl, UCX over shared memory and CMA",
    "nixl_tcp": "nixl, UCX over tcp",
    "gloo": "torch.distributed send and recv, gloo",
}
SLICE_S = 0.04
QUICK_BUDGET_S = 115.0  # for rounds; rivals take 20 s to start, and minutes to install, once


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(sides: Sequence[Side], rounds: int, slice_s: float, budget_s: float) -> dict[str, Any]:
    """As many rounds as fit into the budget, one at least."""
    found = Results()
    done = 0
    with crew.running(sides) as running:
        for name, why in running.unavailable.items():
            say(f"{name} does not take part: {why}")
        started = time.monotonic()
        while done < rounds:
            took_s = time.monotonic() - started
            if done and took_s * (done + 1) / done > budget_s:
                say(f"no time for more than {done} rounds")
                break
            say(f"round {done + 1} of {rounds}, {took_s:.0f} s")
            one_round(running, found, slice_s)
            done += 1
        unavailable = dict(running.unavailable)
    return report(found, [side.name for side in sides], unavailable, done)


def one_round(running: Crew, found: Results, slice_s: float) -> None:
    for shape in shapes.ALL:
        for op in OPS:
            for name in list(running.pairs):
                answer = running.ask(name, op, shape, slice_s)
                if answer is not None:
                    found.add((name, op, shape), answer)


def report(
    found: Results, sides: Sequence[str], unavailable: dict[str, str], rounds: int
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    worst: dict[str, str] = {}
    for promise in PROMISES:
        ratio, where = found.ratio(promise) or (None, "")
        out[promise.name] = None if ratio is None else round(ratio, 3)
        if ratio is None:
            continue
        worst[promise.name] = where
        if ratio < promise.at_least:
            what = "promised" if promise.firm else "aimed at"
            say(
                f"{promise.name} is {ratio:.3f} ({where}), below what is {what}: {promise.at_least}"
            )
    out["worst_at"] = worst
    out["small_ops_us"] = found.small_ops(sides)
    out["gb_per_s"] = found.table(sides, shapes.ALL)
    out["promised"] = {p.name: p.at_least for p in PROMISES if p.firm}
    out["baselines"] = {name: BASELINES[name] for name in sides if name in BASELINES}
    out["unavailable"] = unavailable
    out["rounds"] = rounds
    out["machine"] = f"{os.cpu_count()} CPUs, {platform.machine()}, Linux {platform.release()}"
    return out


def main() -> None:
    names = [side.name for side in SIDES]
    parser = argparse.ArgumentParser(prog="bench.transfer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under two and a half minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object, last on stdout")
    parser.add_argument("--rounds", type=int, default=0, help="instead of 7 (quick) or 21")
    parser.add_argument("--sides", default=",".join(names), help=f"of {', '.join(names)}")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)  # so that no process of ours stays
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    wanted = given.sides.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"no such side: {', '.join(sorted(unknown))}")
    rounds = given.rounds or (7 if given.quick else 21)
    budget_s = QUICK_BUDGET_S if given.quick else math.inf
    out = run([side for side in SIDES if side.name in wanted], rounds, SLICE_S, budget_s)
    say(results.shown(out["gb_per_s"], wanted))
    if given.json:
        print(json.dumps(out))
        return
    for name in [p.name for p in PROMISES]:
        print(f"{name:24} {out[name]}")
    for name, took in out["small_ops_us"].items():
        print(f"4 KiB {name:18} {took}")


def _terminated(_number: int, _frame: object) -> NoReturn:
    raise SystemExit("terminated")


if __name__ == "__main__":
    main()
