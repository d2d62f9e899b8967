"""The store beside its rivals and the machine's limits.

Every ratio is above 1 when we are faster, a median over rounds in which both sides take turns, and
stands beside its table. The last line of stdout is one JSON object (with --json nothing else is).
A rival that cannot run here is named under `unavailable`, with the reason.
"""

import argparse
import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.store.bucket import oss_over_boto3
from bench.store.churn import churn
from bench.store.disk import nvme_over_raw
from bench.store.index import index_costs
from bench.store.metadata import metadata
from bench.store.ours import our_stores
from bench.store.rounds import Compared, table
from bench.store.versus import versus_mooncake
from moonpool.messages.errors import PeerError
from services.cli.mesh.errors import MeshRefused


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done; `--quick` does less of the same."""

    rounds: int
    metadata_s: float  # per kind of request
    churn_blocks: int
    churn_s: float
    index_blocks: int


QUICK = Sizes(rounds=9, metadata_s=1.5, churn_blocks=100_000, churn_s=6.0, index_blocks=1_000_000)
FULL = Sizes(rounds=21, metadata_s=5.0, churn_blocks=300_000, churn_s=30.0, index_blocks=10_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.store", description=__doc__)
    parser.add_argument(
        "part",
        nargs="?",
        choices=["all", "index", "churn"],
        default="all",
        help="index: memory and restart of --blocks; churn: the event loop under it; default: all",
    )
    parser.add_argument("--blocks", type=int, default=0, help="for index and churn")
    parser.add_argument("--quick", action="store_true", help="under two and a half minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("/var/tmp"),
        help="where files of the nvme tier are made, and removed: on a disk",
    )
    given = parser.parse_args()
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    sizes = QUICK if given.quick else FULL
    if given.part == "index":
        results = index_costs(given.folder, given.blocks or sizes.index_blocks)
    elif given.part == "churn":
        results = asyncio.run(churn(given.blocks or sizes.churn_blocks, sizes.churn_s))
    else:
        results = asyncio.run(run(given.folder, sizes, quick=given.quick))
    if not given.json and "tables" in results:
        print(table(results["tables"]))
    print(json.dumps(results))


async def run(folder: Path, sizes: Sizes, *, quick: bool) -> dict[str, Any]:
    rounds = sizes.rounds
    results: dict[str, Any] = {"unavailable": {}}
    missing = results["unavailable"]
    async with our_stores() as (remote, local):
        compared, why = await versus_mooncake(remote, local, rounds)
        _add(results, compared)
        if why:
            missing["mooncake"] = why
        results |= await metadata(local, sizes.metadata_s)
    try:
        _add(results, await nvme_over_raw(folder, rounds, quick=quick))
    except (OSError, PeerError) as error:
        missing["direct I/O"] = f"{folder}: {error}"
    try:
        _add(results, await oss_over_boto3(rounds))
    except (RuntimeError, MeshRefused) as error:
        missing["S3 server"] = str(error)
    results |= await churn(sizes.churn_blocks, sizes.churn_s)
    results |= await _index_apart(folder, sizes.index_blocks)
    return results


async def _index_apart(folder: Path, blocks: int) -> dict[str, Any]:
    """In a process of its own, whose memory is only the index's."""
    command = ["-m", "bench.store", "index", f"--blocks={blocks}", f"--folder={folder}", "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the index's process ended with {process.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found


def _add(results: dict[str, Any], compared: list[Compared]) -> None:
    tables = results.setdefault("tables", {})
    for each in compared:
        results[each.name] = round(each.ratio, 3)
        tables[each.name] = each.row()


if __name__ == "__main__":
    main()
