"""`moonpool plan`: how large must a mesh be? Answered by simulation, in a process of its own."""

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_verb

if TYPE_CHECKING:
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool plan --trace FILE.jsonl --slo-ttft 10 --slo-tbt 0.1
  moonpool plan --trace toolagent --slo-ttft 5 --slo-tbt 0.05 --goodput 0.99 --speed 2
  moonpool plan --trace FILE.jsonl --slo-ttft 10 --slo-tbt 0.1 --machine my-machine.toml

The cheapest numbers of prefills and decodes, and gigabytes of DRAM and NVMe, with which that share
of the requests gets both promises. Prices and speeds are in the machine's TOML file.
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "plan", "size a mesh for a workload and its promises", EXAMPLES, run)
    parser.add_argument("--trace", required=True, help="a file, or a made-up one (see simulate)")
    parser.add_argument("--slo-ttft", required=True, help="seconds to the first token")
    parser.add_argument("--slo-tbt", required=True, help="seconds between tokens")
    parser.add_argument("--goodput", default="0.95", help="share of requests that must get both")
    parser.add_argument("--speed", default="1", help="play the trace so much faster")
    parser.add_argument("--requests", default="2000", help="of the trace, from its start; 0: all")
    parser.add_argument("--nodes-max", default="32", help="of each kind")
    parser.add_argument("--dram-gb", default="250,1000", help="pools per prefill to try")
    parser.add_argument("--machine", default="a800", help="a800, h800, local, or a TOML file")
    parser.add_argument("--seed", default="1")
    add_json_option(parser)


def run(given: argparse.Namespace) -> int:
    names = ("trace", "slo_ttft", "slo_tbt", "goodput", "speed", "requests", "nodes_max")
    words: list[str] = []
    for name in (*names, "dram_gb", "machine", "seed"):
        words += ["--" + name.replace("_", "-"), str(getattr(given, name))]
    if given.json:
        words.append("--json")
    command = [sys.executable, "-m", "services.conductor.simulate", "plan", *words]
    return subprocess.run(command, check=False).returncode
