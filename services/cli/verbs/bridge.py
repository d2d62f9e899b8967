"""`moonpool bridge vllm`: makes a running vLLM's blocks known on the mesh."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from services.cli.asking import add_nats_options, nats_of
from services.cli.options import add_verb

if TYPE_CHECKING:
    from services.cli.options import Verbs

EXAMPLES = """\
  vllm serve Qwen/Qwen3-8B --kv-events-config '{"enable_kv_cache_events": true,
      "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'
  moonpool bridge vllm --model qwen3-8b --endpoint tcp://HOST:5557 --replay tcp://HOST:5558 \\
      --engine-url http://HOST:8000
  moonpool where --tokens ids.json --foreign qwen3-8b --block-tokens 16

one bridge per engine and data-parallel rank (rank N publishes N ports higher). What routers can do
with it: ask who holds a prompt. The mesh plans nothing on such engines and reads none of their
blocks.
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "bridge", "speak for an engine that is not ours", EXAMPLES, run)
    parser.add_argument("engine", choices=["vllm"])
    parser.add_argument("--endpoint", required=True, help="ZMQ address of its KV events")
    parser.add_argument("--model", required=True, help="what routers call its model")
    parser.add_argument("--replay", default="", help="ZMQ address where it replays missed events")
    parser.add_argument("--topic", default="", help="of the events (default: all)")
    parser.add_argument("--engine-url", default="", help="its HTTP address, told to routers")
    parser.add_argument("--id", default="", help="name on the mesh (default: a random one)")
    add_nats_options(parser)


def environment(given: argparse.Namespace) -> dict[str, str]:
    """What the bridge's process is started with, besides what is set already."""
    url, prefix = nats_of(given)
    named = {
        "NATS_URL": url,
        "MESH": prefix,
        "ID": given.id,
        "BRIDGE_ENDPOINT": given.endpoint,
        "BRIDGE_REPLAY_ENDPOINT": given.replay,
        "BRIDGE_TOPIC": given.topic,
        "BRIDGE_MODEL": given.model,
        "BRIDGE_ENGINE_URL": given.engine_url,
    }
    return {f"MOONPOOL_{name}": value for name, value in named.items() if value}


def run(given: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "services.bridge"]
    os.execve(sys.executable, command, os.environ | environment(given))
