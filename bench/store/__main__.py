"""The store beside its rivals and the machine's limits.

Every ratio is above 1 when we are faster, a median over rounds in which both sides take turns, and
stands beside its table. The last line of stdout is one JSON object (with --json nothing else is).
A rival that cannot run here is named under `unavailable`, with the reason.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from bench.store.bucket import oss_over_boto3
from bench.store.disk import nvme_over_raw
from bench.store.rounds import Compared, table
from bench.store.versus import versus_mooncake
from moonpool.messages.errors import PeerError
from services.cli.mesh.errors import MeshRefused


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under two and a half minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path.cwd(),
        help="where files of the nvme tier are made, and removed: on a disk",
    )
    given = parser.parse_args()
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    results = asyncio.run(run(given.folder, quick=given.quick))
    if not given.json:
        print(table(results["tables"]))
    print(json.dumps(results))


async def run(folder: Path, *, quick: bool) -> dict[str, Any]:
    rounds = 7 if quick else 21
    results: dict[str, Any] = {"unavailable": {}}
    missing = results["unavailable"]
    compared, why = await versus_mooncake(rounds)
    _add(results, compared)
    if why:
        missing["mooncake"] = why
    try:
        _add(results, await nvme_over_raw(folder, rounds, quick=quick))
    except (OSError, PeerError) as error:
        missing["direct I/O"] = f"{folder}: {error}"
    try:
        _add(results, await oss_over_boto3(rounds))
    except (RuntimeError, MeshRefused) as error:
        missing["S3 server"] = str(error)
    return results


def _add(results: dict[str, Any], compared: list[Compared]) -> None:
    tables = results.setdefault("tables", {})
    for each in compared:
        results[each.name] = round(each.ratio, 3)
        tables[each.name] = each.row()


if __name__ == "__main__":
    main()
