"""`moonpool store`: values in the pool by name, and its nodes."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_mesh_options, add_verb, running_mesh
from services.cli.verbs.values import ACTIONS, NAMELESS

if TYPE_CHECKING:
    from moonpool.messages.store import StatsReply
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool store put greeting hello.txt     a file under a name; - reads from standard input
  moonpool store get greeting               to standard output, or into a file named after it
  moonpool store get film --range 0:4096    its first 4096 bytes
  moonpool store ls greet                   names that begin so, and their bytes
  moonpool store rm greet --prefix          all of them
  moonpool store pin greeting --hard        never evicted, until unpin
  moonpool store replicas film --add store-2
  moonpool store verify                     reads everything of the tenant, end to end
  moonpool store stats                      tiers of every node: fill, blocks, health
  moonpool store drain store-2              it gives away what is worth keeping, and leaves
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "store", "put and get values, look at store nodes", EXAMPLES, run)
    parser.add_argument("what", choices=[*ACTIONS, "stats", "drain"])
    parser.add_argument(
        "name", nargs="?", default="", help="of a value; ls, verify: how it begins; drain: a node's"
    )
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
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="put: on N nodes")
    parser.add_argument(
        "--durable", action="store_true", help="put: only done when a lower tier has it"
    )
    parser.add_argument("--range", metavar="START:LENGTH", help="get: only these bytes")
    parser.add_argument("--prefix", action="store_true", help="rm: all names that begin so")
    parser.add_argument("--hard", action="store_true", help="pin: for good")
    parser.add_argument("--ttl", type=float, default=1800.0, metavar="S", help="pin: for so long")
    parser.add_argument("--add", metavar="NODE", help="replicas: one more, there")
    parser.add_argument("--drop", metavar="NODE", help="replicas: none there any more")


def run(given: argparse.Namespace) -> int:
    from moonpool.messages import CallerError

    if not given.name and given.what not in {"stats", *NAMELESS}:
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
        if given.what in ACTIONS:
            return await ACTIONS[given.what](store, given)
        if given.what == "drain":
            calls, within_s = store.blocks.calls, given.within
            return await drain(calls, given.name, within_s, wait=not given.no_wait)
        stats = await store.mesh.ask_all(store.blocks.stats)  # of all tenants
    print(as_json(stats) if given.json else as_table(stats))
    return 0


def as_json(stats: "dict[str, StatsReply]") -> str:
    """One object: node -> its tiers, leases, open puts, counters."""
    import msgspec

    return json.dumps(msgspec.to_builtins(stats))


def as_table(stats: "dict[str, StatsReply]") -> str:
    """A line per node and tier."""
    lines = [
        f"{'NODE':12} {'TIER':5} {'BLOCKS':>8} {'USED MiB':>10} {'OF MiB':>10} {'FRAG %':>6} HEALTH"
    ]
    for node, reply in sorted(stats.items()):
        for tier in reply.tiers:
            used, total = tier.bytes_used / (1 << 20), tier.bytes_total / (1 << 20)
            lines.append(
                f"{node:12} {tier.tier:5} {tier.blocks:>8} {used:>10.1f} {total:>10.1f} "
                f"{100 * tier.fragmentation:>6.1f} {tier.health}"
            )
    return "\n".join(lines)
