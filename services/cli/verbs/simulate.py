"""`moonpool simulate`: what would a cache have hit? The simulator runs as a process of its own."""

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_verb

if TYPE_CHECKING:
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool simulate cache --trace FILE.jsonl --capacity-tokens 1e6,3e6 --policy lru,ours,belady
  moonpool simulate cache --trace FILE.jsonl --capacity-tokens 3e6 --policy lru,ours --steady --json
  moonpool simulate cache --trace chat --capacity-tokens 1e5,3e5 --policy lru,sieve,ours

A trace is lines of JSON with timestamp (ms), input_length and hash_ids (512-token blocks), or the
name of a generated one: chat, documents, tools. Policies: lru, ours, fifo, lfu, sieve, s3fifo, arc,
wtinylfu, belady. The result is the share of prompt tokens that were in the cache.
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "simulate", "simulate caches on recorded traffic", EXAMPLES, run)
    parser.add_argument("what", choices=["cache"])
    parser.add_argument("--trace", required=True, help="a file, or chat, documents or tools")
    parser.add_argument("--capacity-tokens", required=True, help="numbers, like 1e6,3e6")
    parser.add_argument("--policy", required=True, help="names, like lru,ours,belady")
    parser.add_argument(
        "--steady",
        action="store_true",
        help="count the last of three passes: fresh ids in each, but for shared prompts",
    )
    parser.add_argument(
        "--second-half", action="store_true", help="let the first half of the trace only warm up"
    )
    parser.add_argument(
        "--full-blocks-only", action="store_true", help="do not cache blocks that prompts end in"
    )
    parser.add_argument("--jobs", type=int, help="processes (default: all cores)")
    add_json_option(parser)


def run(given: argparse.Namespace) -> int:
    words = ["--trace", given.trace, "--capacity-tokens", given.capacity_tokens]
    words += ["--policy", given.policy]
    for name in ("steady", "second_half", "full_blocks_only", "json"):
        if getattr(given, name):
            words.append("--" + name.replace("_", "-"))
    if given.jobs:
        words += ["--jobs", str(given.jobs)]
    command = [sys.executable, "-m", "services.conductor.simulate", given.what, *words]
    return subprocess.run(command, check=False).returncode
