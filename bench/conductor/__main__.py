"""Runs every part on one core, and tells the figures.

Matching prompts in an index of a million blocks and applying block events, each beside Dynamo's
tree (installed in an environment of its own at first use); whole decisions on a mesh of a hundred
instances; and the index after a restart.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass

from bench.conductor.decisions import bench_decisions
from bench.conductor.index import Results, bench_index
from bench.conductor.restart import bench_restart
from bench.conductor.rival import start_rival


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done; `--quick` does less of the same."""

    index_blocks: int
    calls: int
    decisions: int


QUICK = Sizes(1_000_000, 2_000, 1_500)
FULL = Sizes(4_000_000, 10_000, 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.conductor", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a million blocks, about 30 s")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument("--alone", action="store_true", help="without the rival")
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, always the same
    results = measure(QUICK if given.quick else FULL, given.alone)
    if given.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:32} {value:>14,}" if not isinstance(value, str) else f"{name:32} {value}")


def measure(sizes: Sizes, alone: bool) -> Results:
    results: Results = {"core": os.sched_getaffinity(0).pop()}
    rival = "left out" if alone else start_rival()
    if isinstance(rival, str):
        print(f"no rival: {rival}", file=sys.stderr)
        results |= bench_index(sizes.index_blocks, sizes.calls, rival)
    else:
        with rival:
            results |= bench_index(sizes.index_blocks, sizes.calls, rival)
    results |= bench_restart(sizes.index_blocks)
    return results | bench_decisions(sizes.decisions)


if __name__ == "__main__":
    main()
