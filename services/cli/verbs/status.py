"""`moonpool status`: who is there, and how busy."""

import argparse
import asyncio
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_mesh_options, add_verb, running_mesh

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from moonpool.messages.load import LoadReport
    from moonpool.messages.registry import Heartbeat
    from services.cli.options import Verbs

LISTEN_S = 1.3  # everybody sends a heartbeat each second
EXAMPLES = """\
  moonpool status
  moonpool status --json | jq '.[] | select(.state != "ready")'
  moonpool status --nats nats://10.0.0.5:4222
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
    state: str
    host: str
    version: str
    tiers: dict[str, tuple[int, int]] = field(default_factory=dict)  # (used, total) in bytes
    blocks: tuple[int, int] = (0, 0)  # (used, total) of the device pool
    queued: int = 0
    running: int = 0
    slots: int = 0
    load_known: bool = False


def run(given: argparse.Namespace) -> int:
    if given.nats:
        url, prefix = given.nats, given.mesh or "mp"
    else:
        record = running_mesh(given)
        url, prefix = record.nats_url, given.mesh or record.mesh
    rows = asyncio.run(_listen(url, prefix))
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print(table(rows))
    return 0 if rows and all(row.state == "ready" for row in rows) else 1


async def _listen(url: str, prefix: str) -> list[Row]:
    """What everybody says of itself within LISTEN_S. Raises PeerError."""
    from moonpool.messages import Subjects, decode
    from moonpool.messages.load import LoadReport
    from moonpool.messages.registry import Heartbeat

    subjects = Subjects(prefix)
    heard: dict[str, Heartbeat] = {}
    loads: dict[str, LoadReport] = {}

    async def on_heartbeat(message: "Msg") -> None:
        heartbeat = decode(message.data, Heartbeat)
        heard[heartbeat.registration.id] = heartbeat

    async def on_load(message: "Msg") -> None:
        report = decode(message.data, LoadReport)
        loads[report.id] = report

    client = await _connect(url)
    try:
        await client.subscribe(subjects.heartbeat, cb=on_heartbeat)
        await client.subscribe(subjects.load(), cb=on_load)
        await asyncio.sleep(LISTEN_S)
    finally:
        await client.close()
    return [_row(heard[name], loads.get(name)) for name in sorted(heard)]


async def _connect(url: str) -> "Client":
    import nats

    from moonpool.messages import PeerError

    try:
        return await nats.connect(url, allow_reconnect=False, connect_timeout=3)
    except (OSError, nats.errors.Error) as error:
        raise PeerError(f"{url} does not answer: {error}") from error


def _row(heartbeat: "Heartbeat", load: "LoadReport | None") -> Row:
    own = heartbeat.registration
    row = Row(own.id, own.role, heartbeat.state, own.host_id, own.version)
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
    head = ("id", "role", "state", "host", "kv in use", "queue", "running", "tiers")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


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
        " ".join(_tier(name, *fill) for name, fill in row.tiers.items()) or "-",
    )


def _tier(name: str, used_bytes: int, total_bytes: int) -> str:
    share = used_bytes / total_bytes if total_bytes else 0.0
    return f"{name} {used_bytes / 2**20:.0f}/{total_bytes / 2**20:.0f} MiB ({share:.0%})"
