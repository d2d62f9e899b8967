"""`moonpool simulate`: caches and whole meshes on recorded traffic. It runs as a process of its
own, which is given everything after the verb."""

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from services.cli.options import add_verb

if TYPE_CHECKING:
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool simulate serve --trace FILE.jsonl --policy all --nodes 6,8,16 --json
  moonpool simulate serve --trace toolagent --policy global,ours --nodes 8 --html report.html
  moonpool simulate serve --trace chat --nodes 2 --admission all --slo-ttft 30 --slo-tbt 0.1
  moonpool simulate paper fig5 --traces FOLDER
  moonpool simulate cache --trace FILE.jsonl --capacity-tokens 1e6,3e6 --policy lru,ours,belady
  moonpool simulate cache --trace chat --capacity-tokens 1e5,3e5 --policy lru,ours --steady
  moonpool simulate tiers --trace chat --upper-tokens 1e5 --lower-tokens 1e6 --steady

A trace is lines of JSON with timestamp (ms), input_length, output_length and hash_ids (512-token
blocks), or the name of a made-up one: chat, documents, tools, toolagent. `moonpool simulate serve
--help` and `moonpool simulate cache --help` list the options of each.
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "simulate", "simulate the mesh on recorded traffic", EXAMPLES, run)
    parser.add_argument("what", choices=["serve", "paper", "cache", "tiers"])
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="OPTIONS")


def run(given: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "services.conductor.simulate", given.what, *given.words]
    return subprocess.run(command, check=False).returncode
