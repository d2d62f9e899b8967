"""`moonpool quota`: how much each tenant may keep on every store node."""

import argparse
import asyncio
import json
import re
import sys
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_mesh_options, add_verb, running_mesh

if TYPE_CHECKING:
    from moonpool.bus import Bucket
    from moonpool.messages.quota import TenantQuota
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool quota set acme --dram 8GiB --nvme 200GiB      beyond it puts are refused
  moonpool quota set acme --dram 8GiB --over evict       or its own oldest blocks go
  moonpool quota get acme
  moonpool quota list
  moonpool quota clear acme                              no limits any more
"""
CONNECT_S = 5.0
LIMITS = ("dram", "nvme", "oss", "hard")
_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "quota", "bound what tenants keep on store nodes", EXAMPLES, run)
    parser.add_argument("what", choices=["get", "set", "clear", "list"])
    parser.add_argument("tenant", nargs="?", default="")
    for limit in LIMITS:
        meaning = "pinned hard" if limit == "hard" else f"in {limit}"
        parser.add_argument(
            f"--{limit}", type=read_bytes, metavar="BYTES", help=f"{meaning}, on each node"
        )
    parser.add_argument(
        "--over", choices=["refuse", "evict"], help="what is new, or the tenant's own oldest"
    )
    add_mesh_options(parser)
    add_json_option(parser)
    parser.add_argument("--nats", help="server of another mesh, like nats://HOST:4222")
    parser.add_argument("--mesh", help="subject prefix of another mesh (default mp)")


def read_bytes(text: str) -> int:
    """1048576, 512MiB, 8GiB; ArgumentTypeError otherwise."""
    found = re.fullmatch(r"([0-9]+)\s*([KMGT]iB)?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; like 512MiB or 8GiB")
    return int(found[1]) * _UNITS[(found[2] or "").upper()]


def run(given: argparse.Namespace) -> int:
    from moonpool.messages import CallerError
    from moonpool.messages.ids import check_id

    if given.what != "list":
        if not given.tenant:
            raise CallerError(f"whose quota? moonpool quota {given.what} TENANT")
        check_id(given.tenant, "tenant")
    return asyncio.run(_run(given))


async def _run(given: argparse.Namespace) -> int:
    from moonpool.bus import NatsBus
    from moonpool.messages.quota import decode_quota, quotas_bucket

    record = None if given.nats else running_mesh(given)
    url = given.nats or (record.nats_url if record else "")
    mesh = given.mesh or (record.mesh if record else "mp")
    bus = await NatsBus.connect(url, name="moonpool-quota", wait_s=CONNECT_S)
    try:
        bucket = bus.bucket(quotas_bucket(mesh.replace(".", "_")))
        if given.what == "set":
            return await _set(bucket, given)
        if given.what == "clear":
            await bucket.delete(given.tenant)
            print(f"{given.tenant}: no limits")
            return 0
        entries = await bucket.entries()
    finally:
        await bus.close()
    quotas = {tenant: decode_quota(raw) for tenant, raw in sorted(entries.items())}
    if given.what == "get":
        quotas = {tenant: each for tenant, each in quotas.items() if tenant == given.tenant}
        if not quotas:
            print(f"moonpool quota: {given.tenant} has no limits", file=sys.stderr)
            return 1
    print(as_json(quotas) if given.json else as_table(quotas))
    return 0


async def _set(bucket: "Bucket", given: argparse.Namespace) -> int:
    """What is not named stays as it was."""
    from msgspec.structs import replace

    from moonpool.messages.quota import TenantQuota, decode_quota, encode_quota

    raw = await bucket.get(given.tenant)
    quota = decode_quota(raw) if raw else TenantQuota()
    limits = {f"{name}_bytes": getattr(given, name) for name in LIMITS}
    changes = {name: value for name, value in limits.items() if value is not None}
    if given.over:
        changes["over"] = given.over
    quota = replace(quota, **changes)
    await bucket.put(given.tenant, encode_quota(quota))
    print(as_json({given.tenant: quota}) if given.json else as_table({given.tenant: quota}))
    return 0


def as_json(quotas: "dict[str, TenantQuota]") -> str:
    """One object: tenant -> its limits."""
    import msgspec

    return json.dumps(msgspec.to_builtins(quotas))


def as_table(quotas: "dict[str, TenantQuota]") -> str:
    """A line per tenant; sizes in MiB, `-` where there is no limit."""
    lines = [f"{'TENANT':20} " + " ".join(f"{name.upper():>10}" for name in LIMITS) + " OVER"]
    for tenant, quota in quotas.items():
        limits = [getattr(quota, f"{name}_bytes") for name in LIMITS]
        sizes = ["-" if limit is None else f"{limit / (1 << 20):.1f}" for limit in limits]
        lines.append(f"{tenant:20} " + " ".join(f"{size:>10}" for size in sizes) + f" {quota.over}")
    return "\n".join(lines)
