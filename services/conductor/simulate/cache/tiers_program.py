"""`simulate tiers`: filters in front of a lower tier, on one trace."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from moonpool.cache import ADMISSION_NAMES, make_admission
from services.conductor.simulate.cache.program import load
from services.conductor.simulate.cache.tiers import TierTally, TwoTiers
from services.conductor.simulate.cache.trace import (
    BLOCK_TOKENS,
    STEADY_PASSES,
    BadTrace,
    Request,
    repeat,
)

if TYPE_CHECKING:
    Parts = argparse._SubParsersAction[argparse.ArgumentParser]


def add(parts: "Parts") -> None:
    parser = parts.add_parser("tiers", help="hits and writes of admission to a lower tier")
    parser.add_argument("--trace", required=True, help="a file of JSON lines, or a made-up one")
    parser.add_argument(
        "--upper-tokens", type=_tokens, required=True, help="that fit the upper tier, like 1e6"
    )
    parser.add_argument("--lower-tokens", type=_tokens, required=True, help="and the lower one")
    parser.add_argument(
        "--admission",
        type=_filters,
        default=list(ADMISSION_NAMES),
        help=f"of {', '.join(ADMISSION_NAMES)}; with commas between (default: all of them)",
    )
    parser.add_argument(
        "--steady",
        action="store_true",
        help="three passes with fresh ids, of which the last counts",
    )
    parser.add_argument("--json", action="store_true", help="one object: filter -> its figures")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """0, or 1 when the trace cannot be read."""
    try:
        requests = load(given.trace)
    except (BadTrace, OSError) as error:
        print(f"simulate tiers: {error}", file=sys.stderr)
        return 1
    passes = STEADY_PASSES if given.steady else 1
    tallies = {
        name: play(requests, name, given.upper_tokens, given.lower_tokens, passes)
        for name in given.admission
    }
    figures = {name: figures_of(tally) for name, tally in tallies.items()}
    print(json.dumps(figures) if given.json else render(figures))
    return 0


def play(
    requests: list[Request], admission: str, upper_tokens: int, lower_tokens: int, passes: int = 1
) -> TierTally:
    """The tally of the last pass."""
    played = repeat(requests, passes)
    tiers = TwoTiers(
        make_admission(admission), upper_tokens // BLOCK_TOKENS, lower_tokens // BLOCK_TOKENS
    )
    for number, request in enumerate(played):
        if number == len(played) - len(requests):
            tiers.tally = TierTally()
        tiers.ask(request)
    return tiers.tally


def figures_of(tally: TierTally) -> dict[str, float]:
    return {
        "hit_rate": round(tally.hit_rate, 5),
        "hit_rate_below": round(tally.tokens_hit_below / tally.tokens, 5),
        "written_per_token": round(tally.written_share, 5),
        "hits_per_write": round(tally.hits_per_write, 4),
    }


def render(figures: dict[str, dict[str, float]]) -> str:
    """A table: a row per filter."""
    columns = list(next(iter(figures.values())))
    lines = ["admission".ljust(10) + "".join(f"{column:>19}" for column in columns)]
    lines += [
        name.ljust(10) + "".join(f"{value:19.4f}" for value in row.values())
        for name, row in figures.items()
    ]
    return "\n".join(lines)


def _tokens(text: str) -> int:
    try:
        tokens = int(float(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens") from None
    if tokens < BLOCK_TOKENS:
        raise argparse.ArgumentTypeError(f"a tier holds at least {BLOCK_TOKENS} tokens")
    return tokens


def _filters(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in ADMISSION_NAMES:
            known = ", ".join(ADMISSION_NAMES)
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known}")
    return list(dict.fromkeys(names))
