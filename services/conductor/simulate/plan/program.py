"""`moonpool plan`: the cheapest mesh for a workload and its promises."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from services.conductor.simulate.cache.trace import BadTrace
from services.conductor.simulate.plan.search import Found, Goal, Search
from services.conductor.simulate.serve.generate import load_traffic
from services.conductor.simulate.serve.machine import BadMachine, Machine, load_machine

if TYPE_CHECKING:
    Parts = argparse._SubParsersAction[argparse.ArgumentParser]

POOLS_GB = (250.0, 1000.0)  # memory per prefill that is tried
DISK_GB = 4000.0  # and once with so much disk behind the smallest


def add(parts: "Parts") -> None:
    parser = parts.add_parser("plan", help="the cheapest mesh for a workload")
    parser.add_argument("--trace", required=True)
    parser.add_argument("--slo-ttft", type=float, required=True)
    parser.add_argument("--slo-tbt", type=float, required=True)
    parser.add_argument("--goodput", type=float, default=0.95)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--nodes-max", type=int, default=32)
    parser.add_argument("--dram-gb", type=_sizes, default=list(POOLS_GB))
    parser.add_argument("--machine", default="a800")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """0, or 1 when nothing can be planned."""
    wrong = _wrong(given)
    if wrong:
        print(f"plan: {wrong}", file=sys.stderr)
        return 2
    try:
        machine = load_machine(given.machine)
        traffic = load_traffic(given.trace, machine.block_tokens, given.seed)
    except (BadTrace, BadMachine, OSError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 1
    traffic = traffic.first(given.requests or len(traffic.asks)).sped_up(given.speed)
    goal = Goal(given.slo_ttft, given.slo_tbt, given.goodput)
    search = Search(machine, traffic, goal, given.nodes_max, _tell, given.seed)
    pools = [(dram, 0.0) for dram in given.dram_gb]
    found = search.best([*pools, (min(given.dram_gb), DISK_GB)])
    if not found:
        print(
            f"plan: not even {given.nodes_max} prefills and as many decodes keep these promises "
            f"for {given.goodput:.0%} of the requests",
            file=sys.stderr,
        )
        return 1
    print(_shown(found, machine))
    if given.json:
        print(json.dumps({"machine": machine.name, "best": _row(found[0]), "all": _rows(found)}))
    return 0


def _wrong(given: argparse.Namespace) -> str:
    if not given.slo_ttft > 0 or not given.slo_tbt > 0:
        return "promises are seconds above 0"
    if not 0 < given.goodput <= 1:
        return "--goodput is a share of the requests, above 0 and at most 1"
    if given.nodes_max < 1 or given.requests < 0 or not given.speed > 0:
        return "--nodes-max, --requests and --speed are above 0"
    return ""


def _shown(found: list[Found], machine: Machine) -> str:
    lines = [
        f"{machine.name}: the cheapest of each size of pool, per hour",
        f"{'prefills':>9}{'decodes':>9}{'DRAM GB':>10}{'NVMe GB':>10}{'met':>8}{'req/s':>8}"
        f"{'cost':>9}",
    ]
    for each in found:
        size = each.size
        lines.append(
            f"{size.prefills:>9}{size.decodes:>9}{size.prefills * size.dram_gb:>10,.0f}"
            f"{size.prefills * size.nvme_gb:>10,.0f}{each.met_share:>8.1%}"
            f"{each.goodput_per_s:>8.2f}{each.cost:>9.2f}"
        )
    return "\n".join(lines)


def _rows(found: list[Found]) -> list[dict[str, float]]:
    return [_row(each) for each in found]


def _row(each: Found) -> dict[str, float]:
    size = each.size
    return {
        "prefills": size.prefills,
        "decodes": size.decodes,
        "dram_gb": size.prefills * size.dram_gb,
        "nvme_gb": size.prefills * size.nvme_gb,
        "slo_met_share": round(each.met_share, 4),
        "goodput_per_s": round(each.goodput_per_s, 3),
        "cost_per_hour": round(each.cost, 3),
    }


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _sizes(text: str) -> list[float]:
    try:
        sizes = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of gigabytes") from None
    if min(sizes) <= 0:
        raise argparse.ArgumentTypeError("a pool holds more than 0 GB")
    return sizes
