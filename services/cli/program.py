"""Parses the command line and runs one verb."""

import argparse
import os
import sys
from collections.abc import Sequence

from services.cli.verbs import (
    advise,
    bridge,
    chat,
    down,
    models,
    plan,
    quota,
    simulate,
    status,
    store,
    tail,
    topology,
    trace,
    up,
    verify,
    version,
    where,
)

VERBS = (
    up,
    down,
    status,
    chat,
    models,
    tail,
    store,
    quota,
    simulate,
    plan,
    trace,
    verify,
    where,
    advise,
    topology,
    bridge,
    version,
)
DESCRIPTION = "LLM serving with the KVCache at the centre: run a mesh here, or talk to one."
EPILOG = """\
examples:
  moonpool up                           one prefill, one decode, one store; Ctrl-C stops it
  moonpool up --colocated 1             the small mode: one process does both
  moonpool chat                         talk to the mesh that runs here
  moonpool status                       who is there, and how busy
  moonpool verify --model DIR           is the mesh's output what transformers computes?
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="moonpool",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when it went well, 1 when it did not, 2 for a wrong command line, 130 for Ctrl-C."""
    given = build_parser().parse_args(arguments)
    from moonpool.messages.errors import MoonpoolError

    try:
        return int(given.run(given))
    except MoonpoolError as error:
        print(f"moonpool {given.verb}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `moonpool tail audit | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
