"""Offers a mesh 0.5 to 3 times what it can do, in an open loop, and counts the answers in time.

Two meshes take part in one run: one with admission, and one that promises nothing and so never
refuses for being late (its places and blocks still bound it, as any engine's do). The promises are
multiples of what an idle mesh takes.

Loads from capacity on take turns with each other, round after round, so that a machine that
slows down for a while does so for all of them. What comes while queues grow to their length is not
counted. `noise` is the standard error of the goodput at the highest load, over the peak.
"""

import argparse
import asyncio
import json
import statistics
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import httpx

from bench.e2e.asking import Asker
from bench.overload.arrivals import poisson, shapes
from bench.overload.driving import ask, capacity_per_s, open_loop
from bench.overload.outcome import Answer, Promise, outcome, ratio_noise, settled
from services.cli.mesh.local import LocalMesh

BASELINE = "the same mesh with promises so long that admission never refuses for them"
TTFT_OVER_IDLE, TBT_OVER_IDLE = 10.0, 5.0  # the paper's SLOs, relative to an idle machine
CLIENTS = 12
ENDLESS_S = "1000000"
MODES = ("admission", "no_admission")


@dataclass(frozen=True, slots=True)
class Sizes:
    loads: tuple[float, ...]  # of capacity
    rounds: int  # of the loads from 1.0 on, with admission
    collapse: tuple[float, ...]  # loads without admission
    window_s: float  # counted
    idle_requests: int
    capacity_s: float


SETTLE_S = 4.0  # before each window
QUICK = Sizes((0.5, 1.0, 2.0, 3.0), 3, (1.0, 3.0), 15.0, 8, 12.0)
FULL = Sizes((0.5, 1.0, 1.5, 2.0, 2.5, 3.0), 4, (0.5, 1.0, 2.0, 3.0), 40.0, 20, 30.0)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Ground:
    """Meshes and the clients that talk to them; ends with its stack."""

    def __init__(self, stack: AsyncExitStack, dtype: str) -> None:
        self._stack = stack
        self._dtype = dtype

    async def mesh(self, env: dict[str, str]) -> Asker:
        mesh = await self._stack.enter_async_context(LocalMesh(dtype=self._dtype, env=env))
        limits = httpx.Limits(max_connections=1024)
        client = httpx.AsyncClient(timeout=300.0, limits=limits)
        await self._stack.enter_async_context(client)
        return Asker(client, mesh.url, mesh.model_name)


def promising(ttft_s: str, tbt_s: str) -> dict[str, str]:
    return {"MOONPOOL_SLO_TTFT_S": ttft_s, "MOONPOOL_SLO_TBT_S": tbt_s}


async def idle_promise(asker: Asker, requests: int) -> Promise:
    """What one request at a time takes, times what the paper allows."""
    source = shapes(1)
    answers = [await ask(asker, *next(source)) for _ in range(requests + 2)][2:]
    ttft_s = statistics.median(a.ttft_s for a in answers)
    tbt_s = statistics.median(a.tbt_s for a in answers)
    return Promise(TTFT_OVER_IDLE * ttft_s, TBT_OVER_IDLE * tbt_s)


async def run(sizes: Sizes, dtype: str, seed: int) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        ground = Ground(stack, dtype)
        say("a mesh without admission, and what it can do")
        without = await ground.mesh(promising(ENDLESS_S, ENDLESS_S))
        promise = await idle_promise(without, sizes.idle_requests)
        capacity = await capacity_per_s(without, CLIENTS, sizes.capacity_s, seed)
        say(
            f"capacity {capacity:.2f} requests/s; promises: first token {promise.ttft_s:.2f} s, "
            f"tokens every {promise.tbt_s:.3f} s"
        )
        given = await ground.mesh(promising(f"{promise.ttft_s:.4f}", f"{promise.tbt_s:.4f}"))
        await capacity_per_s(given, CLIENTS // 2, sizes.capacity_s, seed + 1)  # it learns
        window = Window(sizes.window_s, promise, capacity, seed)
        table: Table = {mode: {} for mode in MODES}
        for load in sizes.collapse:
            await window.offer(without, "no_admission", load, table)
        for turn in range(sizes.rounds):
            for load in sizes.loads[:: -1 if turn % 2 else 1]:
                if load >= 1.0 or not turn:
                    await window.offer(given, "admission", load, table)
    return results(table, promise, capacity, sizes)


Table = dict[str, dict[float, list[list[Answer]]]]  # mode -> load -> answers of each window


@dataclass(slots=True)
class Window:
    """One stretch of arrivals after the other; no two with the same requests."""

    counted_s: float
    promise: Promise
    capacity: float
    seed: int

    async def offer(self, asker: Asker, mode: str, load: float, table: Table) -> None:
        """Adds what became of one window to the table."""
        self.seed += 10
        whole_s = SETTLE_S + self.counted_s
        arrivals = poisson(load * self.capacity, whole_s, self.seed)
        answers = await open_loop(asker, arrivals, whole_s, self.promise)
        counted = settled(arrivals, answers, SETTLE_S)
        table[mode].setdefault(load, []).append(counted)
        say(f"{load:g}x {mode}: {outcome(counted, self.counted_s, self.promise).as_json()}")


def results(table: Table, promise: Promise, capacity: float, sizes: Sizes) -> dict[str, Any]:
    """What is printed: goodput by load over its peak, and how sure that is."""
    outcomes = {
        mode: {
            load: outcome(list(chain(*windows)), len(windows) * sizes.window_s, promise)
            for load, windows in sorted(by_load.items())
        }
        for mode, by_load in table.items()
    }
    peak = max(o.goodput_per_s for by_load in outcomes.values() for o in by_load.values())
    at_most = max(sizes.loads)
    by_round = {
        load: [outcome(w, sizes.window_s, promise).goodput_per_s for w in windows]
        for load, windows in sorted(table["admission"].items())
    }
    out: dict[str, Any] = {
        "baseline": BASELINE,
        "capacity_per_s": round(capacity, 3),
        "slo_ttft_s": round(promise.ttft_s, 3),
        "slo_tbt_s": round(promise.tbt_s, 4),
        "goodput_peak_per_s": round(peak, 3),
        "noise": round(ratio_noise(by_round[at_most], peak), 3),
        "admission_goodput_by_round": {
            f"{load:g}x": [round(each, 2) for each in rounds] for load, rounds in by_round.items()
        },
    }
    for mode in MODES:
        share = outcomes[mode][at_most].goodput_per_s / peak if peak else 0.0
        out[f"{mode}_goodput_at_{at_most:g}x_over_peak"] = round(share, 3)
    out["table"] = {
        mode: {f"{load:g}x": o.as_json() for load, o in by_load.items()}
        for mode, by_load in outcomes.items()
    }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.overload", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about five minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object, last on stdout")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=7, help="of arrivals and prompts")
    given = parser.parse_args()
    found = asyncio.run(run(QUICK if given.quick else FULL, given.dtype, given.seed))
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:40} {value}")


if __name__ == "__main__":
    main()
