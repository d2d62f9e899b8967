"""`simulate cache`: a grid of policies and capacities over one trace, on all cores."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from moonpool.cache import POLICY_NAMES, EvictionPolicy, make_policy
from services.conductor.simulate.cache.belady import BeladyPolicy
from services.conductor.simulate.cache.generate import GENERATED, generate
from services.conductor.simulate.cache.replay import Replay, Tally
from services.conductor.simulate.cache.trace import (
    BLOCK_TOKENS,
    STEADY_PASSES,
    BadTrace,
    Request,
    read_trace,
    repeat,
)

if TYPE_CHECKING:
    Parts = argparse._SubParsersAction[argparse.ArgumentParser]

BELADY = "belady"
NAMES = (*POLICY_NAMES, BELADY)


@dataclass(frozen=True, slots=True)
class Run:
    """One policy at one capacity."""

    trace: str  # a path, or the name of a generated one
    policy: str
    capacity_tokens: int
    passes: int = 1  # the last one counts
    first_counted: int = 0  # of the last pass: requests before it only warm the cache
    full_blocks_only: bool = False  # a block in which a prompt ends is not cached


def add(parts: "Parts") -> None:
    parser = parts.add_parser("cache", help="token hit rates of eviction policies on a trace")
    made_up = ", ".join(GENERATED)
    parser.add_argument(
        "--trace", required=True, help=f"a file of JSON lines, or a made-up one: {made_up}"
    )
    parser.add_argument(
        "--capacity-tokens",
        type=_capacities,
        required=True,
        help="that fit the cache; several with commas between, like 1e6,3e6",
    )
    parser.add_argument(
        "--policy",
        type=_policies,
        required=True,
        help=f"of {', '.join(NAMES)}; several with commas between",
    )
    parser.add_argument(
        "--steady",
        action="store_true",
        help="three passes with fresh ids, of which the last counts; without it, one cold pass",
    )
    parser.add_argument(
        "--second-half", action="store_true", help="only the second half of the last pass counts"
    )
    parser.add_argument(
        "--full-blocks-only",
        action="store_true",
        help="a block in which a prompt ends is not cached",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="simulations at a time (default: one per processor)",
    )
    parser.add_argument(
        "--json", action="store_true", help="one object: policy -> capacity -> token hit rate"
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """0, or 1 when the trace cannot be read."""
    started = time.monotonic()
    try:
        requests = load(given.trace)
    except (BadTrace, OSError) as error:
        print(f"simulate cache: {error}", file=sys.stderr)
        return 1
    runs = [
        Run(
            given.trace,
            policy,
            capacity,
            STEADY_PASSES if given.steady else 1,
            len(requests) // 2 if given.second_half else 0,
            given.full_blocks_only,
        )
        for policy in given.policy
        for capacity in given.capacity_tokens
    ]
    rates: dict[str, dict[str, float]] = {
        policy: {str(capacity): 0.0 for capacity in given.capacity_tokens}
        for policy in given.policy
    }
    for done, (each, tally) in enumerate(_all(runs, max(1, given.jobs)), 1):
        rates[each.policy][str(each.capacity_tokens)] = round(tally.token_hit_rate, 5)
        print(
            f"[{time.monotonic() - started:.0f} s] {done}/{len(runs)} {each.policy} "
            f"{each.capacity_tokens} tokens: {tally.token_hit_rate:.4f}",
            file=sys.stderr,
            flush=True,
        )
    print(json.dumps(rates) if given.json else render(rates))
    return 0


def load(trace: str) -> list[Request]:
    """Raises BadTrace, OSError."""
    return generate(trace) if trace in GENERATED else read_trace(Path(trace))


def simulate(each: Run, requests: list[Request]) -> Tally:
    """The tally of the counted part. `requests`: one pass."""
    played = repeat(requests, each.passes)
    counted_from = len(played) - len(requests) + each.first_counted
    blocks_max = each.capacity_tokens // BLOCK_TOKENS
    replay = Replay(_policy(each.policy, blocks_max, played), blocks_max, each.full_blocks_only)
    for number, request in enumerate(played):
        if number == counted_from:
            replay.tally = Tally()
        replay.ask(request)
    return replay.tally


def _policy(name: str, blocks_max: int, played: list[Request]) -> EvictionPolicy[int]:
    return BeladyPolicy(played) if name == BELADY else make_policy(name, blocks_max)


def render(rates: dict[str, dict[str, float]]) -> str:
    """A table: a row per policy, a column per capacity."""
    capacities = [int(c) for c in next(iter(rates.values()))]
    lines = ["tokens".ljust(10) + "".join(f"{c:>12,}" for c in capacities)]
    lines += [
        policy.ljust(10) + "".join(f"{rate:12.4f}" for rate in row.values())
        for policy, row in rates.items()
    ]
    return "\n".join(lines)


def _all(runs: list[Run], jobs: int) -> Iterator[tuple[Run, Tally]]:
    """In the order in which they end."""
    if jobs == 1 or len(runs) == 1:
        requests = load(runs[0].trace)
        yield from ((each, simulate(each, requests)) for each in runs)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(runs)), mp_context=context) as pool:
        waiting = {pool.submit(_simulate_alone, each): each for each in runs}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _simulate_alone(each: Run) -> Tally:
    return simulate(each, load(each.trace))


def _capacities(text: str) -> list[int]:
    try:
        capacities = [int(float(part)) for part in text.split(",")]
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of tokens") from None
    if min(capacities) < BLOCK_TOKENS:
        raise argparse.ArgumentTypeError(f"a cache holds at least {BLOCK_TOKENS} tokens")
    return list(dict.fromkeys(capacities))


def _policies(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(NAMES)}")
    return list(dict.fromkeys(names))
