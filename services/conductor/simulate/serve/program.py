"""`simulate serve`: policies and sizes of mesh over one trace."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from services.conductor.overload import GATE_NAMES
from services.conductor.policies import POLICY_NAMES
from services.conductor.simulate.cache.trace import BadTrace
from services.conductor.simulate.serve.balancing import BalancedWorld
from services.conductor.simulate.serve.floor import floor_summary
from services.conductor.simulate.serve.generate import load_traffic
from services.conductor.simulate.serve.machine import BadMachine, Machine, load_machine
from services.conductor.simulate.serve.outcome import Result
from services.conductor.simulate.serve.report import html_report
from services.conductor.simulate.serve.setup import NO_LIMIT_S, Setup
from services.conductor.simulate.serve.traffic import Traffic
from services.conductor.simulate.serve.world import World

if TYPE_CHECKING:
    Parts = argparse._SubParsersAction[argparse.ArgumentParser]

_BAR = 30


def add(parts: "Parts") -> None:
    parser = parts.add_parser("serve", help="the conductor's own code over one trace")
    parser.add_argument("--trace", required=True)
    parser.add_argument("--policy", type=_policies, default=["ours"])
    parser.add_argument("--admission", type=_gates, default=["none"])
    parser.add_argument("--nodes", type=_counts, default=[8])
    parser.add_argument("--decodes", type=int, default=0)
    parser.add_argument("--speed", type=_positive, default=1.0)
    parser.add_argument("--loaded-as", type=int, default=0)
    parser.add_argument("--slo-ttft", type=_positive, default=NO_LIMIT_S)
    parser.add_argument("--slo-tbt", type=_positive, default=NO_LIMIT_S)
    parser.add_argument("--threshold", type=_positive, default=1.0)
    parser.add_argument("--eviction", default="lru")
    parser.add_argument("--machine", default="a800")
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-second-look", action="store_true")
    parser.add_argument("--balancing", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--html", type=Path)
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """0, or 1 when the trace or the machine cannot be used."""
    try:
        machine = load_machine(given.machine)
        traffic = load_traffic(given.trace, machine.block_tokens, given.seed)
        if given.requests:
            traffic = traffic.first(given.requests)
        results = play_all(list(setups(given)), machine, traffic, given.speed, given.loaded_as)
    except (BadTrace, BadMachine, OSError, ValueError) as error:
        print(f"simulate serve: {error}", file=sys.stderr)
        return 1
    floor = floor_summary(traffic.asks, machine)
    print(table(results))
    print(floor_line(floor))
    if given.html:
        given.html.write_text(html_report(results, traffic, machine))
        print(f"the report: {given.html}", file=sys.stderr)
    if given.json:
        told = {"trace": traffic.name, "machine": machine.name, "floor": floor}
        print(json.dumps({**told, "runs": _rows(results)}))
    return 0


def setups(given: argparse.Namespace) -> Iterable[Setup]:
    """One for each size of mesh and policy."""
    for nodes, policy, gate in product(given.nodes, given.policy, given.admission):
        yield Setup(
            prefills=nodes,
            decodes=given.decodes or nodes,
            policy=policy,
            admission=gate,
            threshold=given.threshold,
            slo_ttft_s=given.slo_ttft,
            slo_tbt_s=given.slo_tbt,
            eviction=given.eviction,
            seed=given.seed,
            second_look=not given.no_second_look,
            balancing=given.balancing,
            checked=given.check,
        )


def play_all(
    setups: list[Setup], machine: Machine, traffic: Traffic, speed: float = 1.0, loaded_as: int = 0
) -> list[Result]:
    """One run after the other, with a progress bar where somebody watches. `loaded_as`: speed the
    trace up in proportion to the prefills, so that all are loaded as that many are."""
    results = []
    for number, setup in enumerate(setups, 1):
        factor = speed * (setup.prefills / loaded_as if loaded_as else 1.0)
        label = f"{number}/{len(setups)} {setup.policy}, {setup.prefills} prefills"
        kind = BalancedWorld if setup.balancing else World
        world = kind(setup, machine, traffic.sped_up(factor))
        result = world.run(progress_bar(label))
        result.speed = factor
        results.append(result)
    return results


def progress_bar(label: str) -> Callable[[float], None]:
    """Draws on standard error; nothing where that is no terminal."""
    started = time.monotonic()
    shown = sys.stderr.isatty()

    def draw(share: float) -> None:
        if not shown:
            return
        bar = "█" * round(share * _BAR)
        end = "\n" if share >= 1.0 else ""
        took = time.monotonic() - started
        print(f"\r{label:32} {bar:·<{_BAR}} {share:4.0%} {took:5.1f} s", end=end, file=sys.stderr)

    return draw


def table(results: list[Result]) -> str:
    """What a person compares: a line per run."""
    head = (
        f"{'policy':16}{'admission':10}{'nodes':>6}{'speed':>7}{'TTFT mean':>11}{'p50':>8}"
        f"{'p90':>8}{'p99':>8}{'TBT p90':>9}{'hit':>7}{'busy':>6}{'rejected':>10}{'SLO met':>9}"
    )
    lines = [head]
    for result in results:
        s = result.summary()
        lines.append(
            f"{s['policy']:16}{s['admission']:10}{s['prefills']:>4}+{s['decodes']:<2}"
            f"{result.speed:>6.2f}"
            f"{s['ttft_mean_s']:>9.2f} s{s['ttft_p50_s']:>8.2f}{s['ttft_p90_s']:>8.2f}"
            f"{s['ttft_p99_s']:>8.2f}{s['tbt_p90_s']:>9.3f}{s['token_hit_rate']:>7.3f}"
            f"{s['prefill_busy_share']:>6.0%}{s['rejected']:>10}"
            f"{s['slo_met_share_of_accepted']:>9.1%}"
        )
    return "\n".join(lines)


def floor_line(floor: dict[str, float]) -> str:
    """The line below the table, under its columns."""
    mean_s, *shares_s = floor.values()
    cells = f"{mean_s:>9.2f} s" + "".join(f"{seconds:>8.2f}" for seconds in shares_s)
    return f"{'floor: nobody waits, nothing is evicted':39}{cells}"


def _rows(results: list[Result]) -> list[dict[str, float | int | str]]:
    return [{**result.summary(), "speed": round(result.speed, 4)} for result in results]


def _policies(text: str) -> list[str]:
    return _named(text, POLICY_NAMES)


def _gates(text: str) -> list[str]:
    return _named(text, GATE_NAMES)


def _named(text: str, known: tuple[str, ...]) -> list[str]:
    if text == "all":
        return list(known)
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of all, {', '.join(known)}")
    return list(dict.fromkeys(names))


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers of nodes") from None
    if min(counts) < 1:
        raise argparse.ArgumentTypeError("a mesh has at least one node")
    return list(dict.fromkeys(counts))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value
