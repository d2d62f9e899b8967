"""`moonpool tail`: what the mesh says of itself, live, from NATS."""

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_mesh_options, add_verb, running_mesh

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from moonpool.messages.audit import AuditEventV1
    from moonpool.messages.metrics import MetricsSnapshotV1
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool tail audit                    one line per request that ended
  moonpool tail metrics --service prefill-1
  moonpool tail audit --json | jq .timings.ttft_s
  moonpool tail metrics --nats nats://10.0.0.5:4222
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "tail", "show audit events or metrics as they happen", EXAMPLES, run)
    parser.add_argument("what", choices=["audit", "metrics"])
    add_mesh_options(parser)
    add_json_option(parser)
    parser.add_argument("--nats", help="server of another mesh, like nats://HOST:4222")
    parser.add_argument("--mesh", help="subject prefix of another mesh (default mp)")
    parser.add_argument("--tenant", default="*", help="audit of this tenant only")
    parser.add_argument("--service", default="*", help="metrics of this service only, by id")
    parser.add_argument("--count", type=int, default=0, help="end after so many")


def run(given: argparse.Namespace) -> int:
    return asyncio.run(_tail(given))


def _where(given: argparse.Namespace) -> tuple[str, str]:
    """NATS URL and subject prefix."""
    if given.nats:
        return given.nats, given.mesh or "mp"
    record = running_mesh(given)
    return record.nats_url, given.mesh or record.mesh


async def _tail(given: argparse.Namespace) -> int:
    import nats

    from moonpool.messages import PeerError, Subjects

    url, prefix = _where(given)
    subjects = Subjects(prefix)
    audit = given.what == "audit"
    subject = subjects.audit(given.tenant, "*") if audit else subjects.metrics("*", given.service)
    messages: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4096)
    dropped = 0

    async def take(message: "Msg") -> None:
        nonlocal dropped
        try:
            messages.put_nowait(message.data)
        except asyncio.QueueFull:
            dropped += 1

    try:
        client = await nats.connect(url, max_reconnect_attempts=-1, allow_reconnect=True)
    except (OSError, nats.errors.Error) as error:
        raise PeerError(f"{url} does not answer: {error}") from error
    try:
        await client.subscribe(subject, cb=take)
        shown = 0
        while not given.count or shown < given.count:
            print(line_of(await messages.get(), given.what, as_json=given.json), flush=True)
            shown += 1
    finally:
        await client.close()
        if dropped:
            print(f"{dropped} not shown: they came faster than they could be", file=sys.stderr)
    return 0


def line_of(data: bytes, what: str, *, as_json: bool) -> str:
    """How one message is shown."""
    from moonpool.messages import MalformedMessage
    from moonpool.messages.audit import read_audit
    from moonpool.messages.metrics import read_metrics

    if as_json:
        return data.decode(errors="replace")
    try:
        return audit_line(read_audit(data)) if what == "audit" else metrics_line(read_metrics(data))
    except MalformedMessage as error:
        return f"? {error.message}"


def audit_line(event: "AuditEventV1") -> str:
    cached = event.cached_tokens
    tiers = [(t, getattr(cached, t)) for t in ("hbm", "dram", "nvme", "oss")]
    from_tiers = "+".join(f"{n} {tier}" for tier, n in tiers if n) or "0"
    path = " -> ".join(f"{a.prefill}/{a.decode}" for a in event.attempts)
    times = event.timings
    ttft = f" ttft {times.ttft_s:.3f} s" if times.ttft_s is not None else ""
    tbt = f" tbt {times.tbt_mean_s * 1000:.0f} ms" if times.tbt_mean_s is not None else ""
    return (
        f"{_clock(event.unix_s)} {event.tenant} {event.outcome}"
        f"{' ' + event.code if event.code else ''} {event.http_status} "
        f"in {event.prompt_tokens} (cached {from_tiers}) out {event.completion_tokens}"
        f"{ttft}{tbt} total {times.total_s:.3f} s {path} {event.request_id}"
    )


def metrics_line(snapshot: "MetricsSnapshotV1") -> str:
    """Gauges and counters that are not zero; histograms as median and 95th percentile."""
    parts = [f"{_short(s.name, s.labels)}={s.value:g}" for s in snapshot.samples if s.value]
    parts += [
        f"{_short(h.name, h.labels)}={h.p50:.3g}/{h.p95:.3g}"
        for h in snapshot.histograms
        if h.p50 is not None and h.p95 is not None
    ]
    return f"{_clock(snapshot.unix_s)} {snapshot.id} " + " ".join(parts)


def _short(name: str, labels: dict[str, str]) -> str:
    inner = ",".join(labels.values())
    return name.removeprefix("moonpool_") + (f"[{inner}]" if inner else "")


def _clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
