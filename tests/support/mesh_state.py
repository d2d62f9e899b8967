"""What a mesh says of itself: whether it is idle, what its index knows, what its metrics count."""

from collections.abc import Sequence

import httpx

from moonpool.kv import BlockKey, pack_keys
from moonpool.messages import RequestId
from moonpool.messages.codec import decode, encode
from moonpool.messages.plan import PlanReply, PlanRequest
from moonpool.messages.status import ConductorStatus, StatusRequest
from moonpool.messages.store import StatsReply, StatsRequest
from tests.support.instances import TENANT, Hand


async def status(hand: Hand) -> ConductorStatus:
    subject = f"{hand.subjects.prefix}.conductor.status"
    return decode(await hand.bus.request(subject, encode(StatusRequest()), 5.0), ConductorStatus)


async def busy(hand: Hand) -> list[str]:
    """What is still held anywhere: empty when the mesh is idle."""
    held = []
    for member in (await status(hand)).members:
        load, id = member.load, member.registration.id
        if member.registration.role in ("prefill", "decode", "colocated"):
            if load is None:
                held.append(f"{id}: no report")
                continue
            for name in ("queued_requests", "running", "reserved"):
                if getattr(load, name):
                    held.append(f"{id}: {name}={getattr(load, name)}")
            if load.blocks_free != load.blocks_total:
                held.append(f"{id}: {load.blocks_total - load.blocks_free} blocks in use")
        if member.registration.role == "store":
            subject = hand.subjects.store(id, "stats")
            stats = decode(await hand.bus.request(subject, encode(StatsRequest()), 5.0), StatsReply)
            if stats.leases or stats.puts_open:
                held.append(f"{id}: {stats.leases} leases, {stats.puts_open} open puts")
    return held


async def planned_blocks(hand: Hand, model: str, keys: Sequence[BlockKey], tokens: int) -> int:
    """How many leading blocks a plan made now would reuse from other owners or the prefill."""
    request = PlanRequest(
        RequestId("probe"), TENANT, model, hand.fingerprint, pack_keys(keys), tokens, 1
    )
    reply = decode(await hand.bus.request(hand.subjects.plan, encode(request), 5.0), PlanReply)
    return max((run.end for run in reply.plan.runs), default=0) if reply.plan else 0


async def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a metric's series on a gateway that have these labels."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    total = 0.0
    for line in text.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")) and all(
            f'{key}="{value}"' in line for key, value in labels.items()
        ):
            total += float(line.rsplit(" ", 1)[1])
    return total
