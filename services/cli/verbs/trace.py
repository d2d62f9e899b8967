"""`moonpool trace export`: a mesh's own traffic as a trace for the simulator, without any text."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.options import add_mesh_options, add_verb, running_mesh

if TYPE_CHECKING:
    from moonpool.messages.audit import AuditEventV1
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool trace export --out mine.jsonl                  from the audit stream of the mesh here
  moonpool trace export --nats nats://HOST:4222 --out mine.jsonl
  moonpool trace export --file audit.jsonl > mine.jsonl   from `moonpool tail audit --json`
  moonpool simulate serve --trace mine.jsonl --policy global,ours --nodes 4

Gateways name blocks in audit events only with MOONPOOL_AUDIT_BLOCKS=true; without it the trace has
times and lengths, but no reuse.
"""
_MESSAGE_TIMEOUT_S = 10.0


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "trace", "export traffic as a trace, without text", EXAMPLES, run)
    parser.add_argument("what", choices=["export"])
    add_mesh_options(parser)
    parser.add_argument("--file", type=Path, help="audit events, a JSON object per line")
    parser.add_argument("--nats", help="server of another mesh, like nats://HOST:4222")
    parser.add_argument("--mesh", help="subject prefix of another mesh (default mp)")
    parser.add_argument("--out", type=Path, help="where to (default: standard output)")
    parser.add_argument(
        "--block-tokens", type=int, default=512, help="of the trace; a multiple of the mesh's"
    )


def run(given: argparse.Namespace) -> int:
    """0, or 1 when there is nothing to export."""
    from services.cli.traces import TraceExport

    if given.block_tokens < 1:
        print("trace export: --block-tokens is at least 1", file=sys.stderr)
        return 2
    events = _from_file(given.file) if given.file else asyncio.run(_from_stream(given))
    export = TraceExport(given.block_tokens)
    lines = [json.dumps(line) for line in export.lines(events)]
    if not lines:
        print("trace export: no event of a request that was understood", file=sys.stderr)
        return 1
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")
    else:
        print("\n".join(lines))
    told = export.told
    print(f"{told.requests} requests, {told.left_out} left out", file=sys.stderr)
    if told.nameless:
        print(
            f"{told.nameless} without blocks that fit {given.block_tokens} tokens: gateways name "
            "blocks with MOONPOOL_AUDIT_BLOCKS=true",
            file=sys.stderr,
        )
    return 0


def _from_file(path: Path) -> "list[AuditEventV1]":
    """Raises CallerError."""
    from moonpool.messages import CallerError
    from moonpool.messages.audit import read_audit
    from moonpool.messages.errors import MoonpoolError

    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"{path}: {error}") from None
    events = []
    for number, line in enumerate(lines, 1):
        try:
            events += [read_audit(line.encode())] if line.strip() else []
        except MoonpoolError as error:
            raise CallerError(f"{path}, line {number}: {error.message}") from None
    return events


async def _from_stream(given: argparse.Namespace) -> "list[AuditEventV1]":
    """All that the stream holds now. Raises PeerError, MeshRefused."""
    import nats
    import nats.errors
    import nats.js.errors

    from moonpool.messages import PeerError, Subjects
    from moonpool.messages.audit import read_audit

    url, prefix = given.nats, given.mesh or "mp"
    if not url:
        record = running_mesh(given)
        url, prefix = record.nats_url, given.mesh or record.mesh
    name = f"{prefix.upper().replace('.', '_')}_AUDIT"
    try:
        client = await nats.connect(url, connect_timeout=5, max_reconnect_attempts=2)
    except (OSError, nats.errors.Error) as error:
        raise PeerError(f"no NATS server at {url}: {error}") from None
    events = []
    try:
        stream = client.jetstream()
        if not (await stream.stream_info(name)).state.messages:
            return []
        subject = Subjects(prefix).audit("*", "*")
        follow = await stream.subscribe(subject, stream=name, ordered_consumer=True)
        while True:
            message = await follow.next_msg(timeout=_MESSAGE_TIMEOUT_S)
            events.append(read_audit(message.data))
            if not message.metadata.num_pending:
                return events
    except (nats.errors.Error, nats.js.errors.Error) as error:
        raise PeerError(f"the audit stream {name} at {url}: {error or type(error)}") from None
    finally:
        await client.close()
