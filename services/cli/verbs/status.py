"""`moonpool status`: who is there, and how busy, as a conductor sees it."""

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_mesh_options, add_verb, running_mesh

if TYPE_CHECKING:
    from moonpool.messages.status import ConductorStatus, MemberStatus
    from services.cli.options import Verbs

TIMEOUT_S = 5.0
EXAMPLES = """\
  moonpool status
  moonpool status --json | jq '.services[] | select(.state != "ready")'
  moonpool status --nats nats://10.0.0.5:4222

exit code 0: every service is ready and nobody is suspect
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "status", "list every service of a mesh", EXAMPLES, run)
    add_mesh_options(parser)
    add_json_option(parser)
    parser.add_argument("--nats", help="server of another mesh, like nats://HOST:4222")
    parser.add_argument("--mesh", help="subject prefix of another mesh (default mp)")


@dataclass(slots=True)
class Row:
    """One service as the table shows it."""

    id: str
    role: str
    state: str  # "starting", "ready", "draining", "suspect"
    host: str
    version: str
    heard_ago_s: float
    tiers: dict[str, tuple[int, int]] = field(default_factory=dict)  # (used, total) in bytes
    blocks: tuple[int, int] = (0, 0)  # (used, total) of the device pool
    queued: int = 0
    running: int = 0
    slots: int = 0
    load_known: bool = False
    indexed: int = 0  # blocks of it that the conductor's index knows
    mismatch: str = ""  # why it may not serve its model


def run(given: argparse.Namespace) -> int:
    if given.nats:
        url, prefix = given.nats, given.mesh or "mp"
    else:
        record = running_mesh(given)
        url, prefix = record.nats_url, given.mesh or record.mesh
    status = asyncio.run(ask(url, prefix))
    rows = [row_of(member) for member in status.members]
    if given.json:
        shown = {"conductor": status.id, "keys": status.keys, "blocks": status.blocks}
        print(json.dumps(shown | {"services": [asdict(row) for row in rows]}))
    else:
        print(table(rows))
    return 0 if rows and all(row.state == "ready" for row in rows) else 1


async def ask(nats_url: str, prefix: str) -> "ConductorStatus":
    """What one conductor knows. Raises PeerError when none, or no server, answers."""
    from moonpool.bus import NatsBus, NoResponder
    from moonpool.messages import PeerError, Subjects
    from moonpool.messages.codec import decode, encode
    from moonpool.messages.status import ConductorStatus, StatusRequest

    try:
        async with asyncio.timeout(TIMEOUT_S):
            bus = await NatsBus.connect(nats_url, name="moonpool-status")
    except TimeoutError as error:
        raise PeerError(f"{nats_url} does not answer") from error
    try:
        subject = Subjects(prefix).conductor_status
        reply = await bus.request(subject, encode(StatusRequest()), TIMEOUT_S)
    except NoResponder as error:
        raise PeerError(f"no conductor answers at {nats_url}: is it starting, or gone?") from error
    finally:
        await bus.close()
    return decode(reply, ConductorStatus)


def row_of(member: "MemberStatus") -> Row:
    own, load = member.registration, member.load
    state = member.state if member.health == "alive" else member.health
    row = Row(own.id, own.role, state, own.host_id, own.version, round(member.heard_ago_s, 3))
    row.indexed, row.mismatch = sum(member.blocks.values()), member.mismatch
    if load is not None:
        row.load_known = True
        row.tiers = dict(load.tiers)
        row.blocks = (load.blocks_total - load.blocks_free, load.blocks_total)
        row.queued, row.running, row.slots = load.queued_requests, load.running, load.slots_total
    return row


def table(rows: list[Row]) -> str:
    """Columns as wide as their widest cell."""
    if not rows:
        return "nobody there"
    head = ("id", "role", "state", "host", "kv in use", "queue", "running", "cached", "tiers")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*shown, *(f"! {row.id}: {row.mismatch}" for row in rows if row.mismatch)])


def _cells(row: Row) -> tuple[str, ...]:
    used, total = row.blocks
    return (
        row.id,
        row.role,
        row.state,
        row.host[:12],
        f"{used}/{total} ({used / total:.0%})" if total else "-",
        str(row.queued) if row.load_known else "-",
        f"{row.running}/{row.slots}" if row.slots else "-",
        f"{row.indexed} blocks" if row.load_known else "-",
        " ".join(_tier(name, *fill) for name, fill in row.tiers.items()) or "-",
    )


def _tier(name: str, used_bytes: int, total_bytes: int) -> str:
    share = used_bytes / total_bytes if total_bytes else 0.0
    return f"{name} {used_bytes / 2**20:.0f}/{total_bytes / 2**20:.0f} MiB ({share:.0%})"
