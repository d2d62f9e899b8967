"""What an instance answers at its doors, without an engine behind them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moonpool.bus import Endpoint, MemoryBroker, MemoryBus
from moonpool.cache import LruPolicy
from moonpool.instance.core import InstanceCore, Limits
from moonpool.instance.doors import Doors
from moonpool.kv import BlockPool
from moonpool.messages.advice import RoleReply, RoleRequest
from moonpool.messages.codec import decode, encode
from moonpool.messages.decode import ReserveReply, ReserveRequest
from moonpool.messages.ids import InstanceId, RequestId, TenantId
from moonpool.messages.plan import Plan
from moonpool.messages.prefill import (
    CancelReply,
    CancelRequest,
    SubmitReply,
    SubmitRequest,
)
from moonpool.messages.sampling import SamplingParams
from moonpool.runtime import new_context
from moonpool.settings import WorkerSettings

BLOCK, FINGERPRINT = 16, b"f"


class House:
    """Doors over a real core; nobody fetches, pushes or computes."""

    def __init__(self, role: str) -> None:
        context = new_context(role, WorkerSettings(), MemoryBus(MemoryBroker()), id="c1")
        layout = SimpleNamespace(block_tokens=BLOCK, layers=1)
        region = SimpleNamespace(grant=lambda *_, **__: None)
        memory = SimpleNamespace(layout=layout, region=region)
        limits = Limits(BLOCK, 1024, frozenset({2}), 64, 8, 8)
        self.core = InstanceCore(limits, BlockPool(64, 1, LruPolicy()))
        prompts: Any = SimpleNamespace(add=lambda *_: None, drop=lambda *_: None)
        links: Any = SimpleNamespace(ctx=context, memory=memory)
        self.doors = Doors(links, self.core, prompts, asyncio.Event(), FINGERPRINT)

    async def say(self, endpoints: list[Endpoint], verb: str, message: Any) -> bytes:
        (endpoint,) = [each for each in endpoints if each.name.endswith(verb)]
        return await endpoint.handler(encode(message))

    async def submit(self, name: str, *, here: bool = True, **fields: Any) -> SubmitReply:
        message = SubmitRequest(
            RequestId(name),
            0,
            TenantId("t"),
            "m",
            FINGERPRINT,
            root=b"r" * 16,
            keys=b"",
            tokens=np.arange(10, dtype="<i4").tobytes(),
            output_start=10,
            sampling=SamplingParams(),
            plan=Plan(InstanceId("c1"), InstanceId("c1" if here else "d1")),
            reservation=None if here else ReserveReply(decode="d1"),
            deadline_s=60.0,
            **fields,
        )
        return decode(await self.say(self.doors.prefill(), "submit", message), SubmitReply)

    async def reserve(self, name: str) -> ReserveReply:
        message = ReserveRequest(RequestId(name), 0, TenantId("t"), FINGERPRINT, b"", 10, 5, 9.0)
        return decode(await self.say(self.doors.decode(), "reserve", message), ReserveReply)

    async def told(self, duty: str) -> RoleReply:
        return decode(await self.say([self.doors.role()], "role", RoleRequest(duty)), RoleReply)

    async def cancel(self, name: str) -> bool:
        message = CancelRequest(RequestId(name), 0, only_waiting=True)
        answer = await self.say(self.doors.prefill(), "cancel", message)
        return decode(answer, CancelReply).ended


def code(reply: SubmitReply | ReserveReply) -> str:
    return reply.refusal.code if reply.refusal else ""


async def test_a_prompt_that_waits_is_withdrawn_and_one_that_has_begun_is_not() -> None:
    house = House("prefill")
    for name in ("waits", "begun"):
        assert code(await house.submit(name, here=False)) == ""
    begun = house.core.find(RequestId("begun"), 0)
    assert begun is not None
    begun.tag = 0.0
    assert await house.cancel("waits")
    assert not await house.cancel("begun")
    assert not await house.cancel("nobody")
    assert [seq.request for seq in house.core.sequences()] == ["begun"]


async def test_a_duty_refuses_what_is_not_of_its_kind_for_another_to_take() -> None:
    house = House("colocated")
    assert (await house.told("prefill")).duty == "prefill"
    refused = await house.submit("whole")
    assert code(refused) == "no_capacity"
    assert refused.refusal
    assert refused.refusal.elsewhere
    assert code(await house.submit("half", here=False)) == ""
    assert code(await house.reserve("place")) == "no_capacity"
    await house.told("decode")
    assert code(await house.submit("other", here=False)) == "no_capacity"
    assert code(await house.reserve("place")) == ""
    await house.told("both")
    assert code(await house.submit("whole")) == ""


async def test_a_duty_that_is_none_is_refused_and_changes_nothing() -> None:
    house = House("colocated")
    reply = await house.told("rest")
    assert reply.duty == "both"
    assert reply.refusal
    assert code(await house.submit("whole")) == ""


@pytest.mark.parametrize(("level", "kept"), [(-3, 0), (0, 0), (2, 2), (99, 2)])
async def test_levels_and_weights_beyond_what_there_is_are_bounded(level: int, kept: int) -> None:
    house = House("colocated")
    await house.submit("r", level=level, weight=1e9, start_by_s=3.0)
    seq = house.core.find(RequestId("r"), 0)
    assert seq is not None
    assert (seq.level, seq.weight) == (kept, 1000.0)
    now_s = house.doors._links.ctx.clock.now()
    assert now_s < seq.start_by_s <= now_s + 3.0
