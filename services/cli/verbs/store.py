"""`moonpool store`: values in the pool by name, and its nodes."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_mesh_options, add_verb, running_mesh

if TYPE_CHECKING:
    from moonpool.client import StoreClient
    from moonpool.messages.store import StatsReply
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool store put greeting hello.txt     a file under a name; - reads from standard input
  moonpool store get greeting               to standard output, or into a file named after it
  moonpool store stats                      tiers of every node: fill, blocks, health
  moonpool store drain store-2              it gives away what is worth keeping, and leaves
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "store", "put and get values, look at store nodes", EXAMPLES, run)
    parser.add_argument("what", choices=["put", "get", "stats", "drain"])
    parser.add_argument("name", nargs="?", default="", help="of a value; of a node for drain")
    parser.add_argument("file", nargs="?", type=Path, help="to read from, or to write to")
    add_mesh_options(parser)
    add_json_option(parser)
    parser.add_argument("--nats", help="server of another mesh, like nats://HOST:4222")
    parser.add_argument("--mesh", help="subject prefix of another mesh (default mp)")
    parser.add_argument("--tenant", default="public", help="whose values")
    parser.add_argument(
        "--within", type=float, default=60.0, metavar="S", help="drain: time to give blocks away"
    )
    parser.add_argument("--no-wait", action="store_true", help="drain: do not wait for its end")
    parser.add_argument("--replace", action="store_true", help="put: in place of an older value")


def run(given: argparse.Namespace) -> int:
    from moonpool.messages import CallerError

    if given.what != "stats" and not given.name:
        raise CallerError(f"{given.what} whom? moonpool store {given.what} NAME")
    return asyncio.run(_run(given))


async def _run(given: argparse.Namespace) -> int:
    from moonpool.client import StoreClient
    from services.cli.verbs.draining import drain

    record = None if given.nats else running_mesh(given)
    url = given.nats or (record.nats_url if record else "")
    mesh = given.mesh or (record.mesh if record else "mp")
    nodes = [given.name] if given.what == "drain" else []
    async with StoreClient.connect(url, mesh=mesh, tenant=given.tenant, nodes=nodes) as store:
        if given.what == "put":
            return await _put(store, given)
        if given.what == "get":
            return await _get(store, given)
        if given.what == "drain":
            calls, within_s = store.blocks.calls, given.within
            return await drain(calls, given.name, within_s, wait=not given.no_wait)
        stats = await store.stats()
    print(as_json(stats) if given.json else as_table(stats))
    return 0


async def _put(store: "StoreClient", given: argparse.Namespace) -> int:
    from_stdin = given.file is None or str(given.file) == "-"
    read = sys.stdin.buffer.read if from_stdin else given.file.read_bytes
    value = await asyncio.to_thread(read)
    if await store.put(given.name, value, replace=given.replace):
        print(f"{given.name}: {len(value)} bytes")
        return 0
    print(f"moonpool store: {given.name} is taken (--replace puts it anew)", file=sys.stderr)
    return 1


async def _get(store: "StoreClient", given: argparse.Namespace) -> int:
    value = await store.get(given.name)
    if value is None:
        print(f"moonpool store: no node has {given.name}", file=sys.stderr)
        return 1
    write = given.file.write_bytes if given.file else sys.stdout.buffer.write
    await asyncio.to_thread(write, value)
    return 0


def as_json(stats: "dict[str, StatsReply]") -> str:
    """One object: node -> its tiers, leases, open puts, counters."""
    import msgspec

    return json.dumps(msgspec.to_builtins(stats))


def as_table(stats: "dict[str, StatsReply]") -> str:
    """A line per node and tier."""
    lines = [f"{'NODE':12} {'TIER':5} {'BLOCKS':>8} {'USED MiB':>10} {'OF MiB':>10} HEALTH"]
    for node, reply in sorted(stats.items()):
        for tier in reply.tiers:
            used, total = tier.bytes_used / (1 << 20), tier.bytes_total / (1 << 20)
            lines.append(
                f"{node:12} {tier.tier:5} {tier.blocks:>8} {used:>10.1f} {total:>10.1f} "
                f"{tier.health}"
            )
    return "\n".join(lines)
