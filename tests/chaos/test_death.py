"""Anything may die at any moment: answers stay whole and equal, and nothing hangs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from moonpool.messages.audit import AuditEventV1, read_audit
from tests.e2e.conftest import Mesh
from tests.support.mesh_state import busy
from tests.support.reference import Reference
from tests.support.until import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TOKENS = 40


def question(name: str) -> str:
    return f"This is about {name}. Tell a long story of a sailor who counts the stars."


class Chat:
    """One streamed answer, cut off by nothing but its end."""

    def __init__(self, mesh: Mesh, text: str) -> None:
        self._mesh = mesh
        self.messages = [{"role": "user", "content": text}]
        self.text = ""
        self.finish = ""
        self.error = ""

    async def run(self) -> None:
        body = {
            "model": self._mesh.local.model_name,
            "messages": self.messages,
            "temperature": 0,
            "max_tokens": TOKENS,
            "stream": True,
        }
        async with (
            httpx.AsyncClient(timeout=120.0) as client,
            client.stream("POST", f"{self._mesh.url}/v1/chat/completions", json=body) as reply,
        ):
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                self.error = str(event.get("error", self.error))
                for choice in event.get("choices", ()):
                    self.text += choice["delta"].get("content") or ""
                    self.finish = choice.get("finish_reason") or self.finish

    def whole(self, reference: Reference) -> str:
        return reference.text(reference.tokens(reference.chat_ids(self.messages), TOKENS))


@contextlib.asynccontextmanager
async def audits(mesh: Mesh) -> AsyncIterator[list[AuditEventV1]]:
    events: list[AuditEventV1] = []

    async def note(_: str, payload: bytes) -> None:
        events.append(read_audit(payload))

    subscription = await mesh.hand.bus.subscribe("mp.audit.>", note)
    yield events
    await subscription.close()


async def start_chats(
    mesh: Mesh, name: str, count: int
) -> tuple[list[Chat], asyncio.Future[object]]:
    """Chats of which each has given some text already."""
    chats = [Chat(mesh, question(f"{name} {n}")) for n in range(count)]
    running = asyncio.gather(*(chat.run() for chat in chats))
    await until(lambda: all(len(chat.text) > 10 for chat in chats), 60.0)
    return chats, running


async def until_idle(mesh: Mesh) -> None:
    async def idle() -> bool:
        return not await busy(mesh.hand)

    await until(idle, 40.0)


def check(chats: list[Chat], reference: Reference) -> None:
    for chat in chats:
        assert not chat.error, chat.error
        assert chat.finish in ("stop", "length")
        assert chat.text == chat.whole(reference)


@pytest.mark.parametrize("victim", ["decode-1", "decode-2"])
async def test_answers_of_a_killed_decode_continue_elsewhere_unchanged(
    mesh: Mesh, reference: Reference, victim: str
) -> None:
    async with audits(mesh) as events:
        chats, running = await start_chats(mesh, f"killing {victim}", 4)
        await mesh.local.kill(victim)
        await asyncio.wait_for(running, 90.0)
        check(chats, reference)
        await until(lambda: len(events) >= 4)
    moved = [event for event in events if len(event.attempts) > 1]
    assert any(event.attempts[0].decode == victim for event in moved)
    await mesh.local.restart(victim)
    await until_idle(mesh)


async def test_prompts_of_a_killed_prefill_are_computed_elsewhere(
    mesh: Mesh, reference: Reference
) -> None:
    chats = [Chat(mesh, question(f"killed prefill {n} ") * 20) for n in range(4)]
    running = asyncio.gather(*(chat.run() for chat in chats))

    async def computing() -> bool:
        return any("prefill-1: queued" in held for held in await busy(mesh.hand))

    await until(computing, 30.0)
    await mesh.local.kill("prefill-1")
    await asyncio.wait_for(running, 120.0)
    check(chats, reference)
    await mesh.local.restart("prefill-1")
    await until_idle(mesh)


async def test_a_stopped_decode_is_left_after_its_silence(mesh: Mesh, reference: Reference) -> None:
    chats, running = await start_chats(mesh, "stopping", 4)
    mesh.local.pause("decode-1")
    try:
        await asyncio.wait_for(running, 90.0)
    finally:
        mesh.local.resume("decode-1")
    check(chats, reference)
    await until_idle(mesh)


async def test_killing_a_conductor_or_a_store_changes_no_answer(
    mesh: Mesh, reference: Reference
) -> None:
    for victim in ("conductor-1", "store-1"):
        chats, running = await start_chats(mesh, f"killing {victim}", 3)
        await mesh.local.kill(victim)
        more = [Chat(mesh, question(f"after {victim} {n}")) for n in range(3)]
        await asyncio.wait_for(asyncio.gather(*(chat.run() for chat in more)), 90.0)
        await asyncio.wait_for(running, 90.0)
        check([*chats, *more], reference)
        await mesh.local.restart(victim)
    await until_idle(mesh)


async def test_restarted_conductors_know_every_block_again(mesh: Mesh) -> None:
    text = question("remembering") * 6
    async with audits(mesh) as events:
        first = Chat(mesh, text)
        await first.run()
        for name in ("conductor-1", "conductor-2"):
            await mesh.local.restart(name)
        second = Chat(mesh, text)
        await second.run()
        await until(lambda: len(events) >= 2)
    assert second.text == first.text
    assert events[-1].cached_tokens.total >= (events[-1].prompt_tokens - 1) // 64 * 64
    await until_idle(mesh)
