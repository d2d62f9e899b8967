"""A gateway in front of a scripted mesh."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import openai
from fastapi import FastAPI

from moonpool.bus import MemoryBus
from moonpool.runtime import Members, new_context
from moonpool.settings import GatewaySettings
from services.gateway.gateway import Gateway
from services.gateway.routes import create_app
from services.gateway.server import HttpServer, listen
from tests.support.until import until
from tests.unit.gateway.scripts import MODEL, Instance, ScriptedMesh
from tests.unit.gateway.tiny import tiny_text

ANSWER = "the quick brown fox jumps over the lazy dog 月亮 🙂 END and more"


def answer_tokens(text: str = ANSWER) -> list[int]:
    """Tokens of `text`, and the end token."""
    return [*tiny_text().encode(text, special=False).tolist(), 2]


@dataclass
class House:
    mesh: ScriptedMesh
    gateway: Gateway
    app: FastAPI
    url: str
    http: httpx.AsyncClient
    sdk: Any  # openai.AsyncOpenAI: its types refuse what a test wants to send

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of every event of a stream."""
        async with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, await response.aread()
            lines = [line async for line in response.aiter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        return [line.removeprefix("data: ") for line in lines]

    def leftovers(self) -> dict[str, int]:
        """What must be zero when nothing is under way."""
        gateway = self.gateway
        pumps = [p for p in self.mesh.broker.pumps.values() if p.startswith("mp.tokens.")]
        names = {"ping", "submit", "cancel", "unsubscribe"}
        tasks = [task for task in asyncio.all_tasks() if task.get_name() in names]
        return {
            "running": gateway.running,
            "flights": len(gateway.mesh.flights),
            "background": gateway.background.stats()["running"],
            "subscriptions": len(pumps),
            "tasks": len(tasks),
        }

    async def empties(self) -> None:
        """Returns once everything has been given back."""
        await until(lambda: not any(self.leftovers().values()), saying=str(self.leftovers()))

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(data) for _, data in self.mesh.broker.kept("MP_AUDIT")]


def pair() -> tuple[Instance, Instance]:
    return Instance("p1", "prefill"), Instance("d1", "decode")


@asynccontextmanager
async def open_house(
    *instances: Instance,
    answer: list[int] | None = None,
    chat: bool = True,
    port: bool = False,
    **settings: Any,
) -> AsyncIterator[House]:
    """One prefill and one decode, unless others are given. Clients call the application directly,
    or over a real port where a test is about connections."""
    mesh = ScriptedMesh(answer if answer is not None else answer_tokens())
    bus = MemoryBus(mesh.broker)
    context = new_context("gateway", GatewaySettings(**settings), bus, id="g1")
    members = Members(
        bus,
        context.subjects,
        context.clock,
        on_change=lambda change: gateway.member_changed(change),
    )
    gateway = Gateway(context, members)
    gateway.serve_model(MODEL, tiny_text(chat))
    app = create_app(gateway)
    auditing = asyncio.create_task(gateway.audit.run())
    async with members, _served(app, port) as (url, http, sdk):
        await mesh.start(*(instances or pair()))
        await until(lambda: not gateway.missing())
        await until(lambda: bool(mesh.broker.streams))
        try:
            yield House(mesh, gateway, app, url, http, sdk)
        finally:
            auditing.cancel()
            await asyncio.wait([auditing])
            await gateway.close(2.0)
            await mesh.close()
    await bus.close()


@asynccontextmanager
async def _served(
    app: FastAPI, port: bool
) -> AsyncIterator[tuple[str, httpx.AsyncClient, openai.AsyncOpenAI]]:
    """The application's address, and two clients that reach it."""
    if not port:
        url = "http://gateway"
        direct: Any = httpx.ASGITransport(app=app)
        like: Any = openai.DefaultAsyncHttpxClient(transport=httpx2.ASGITransport(app=app))
        async with (
            httpx.AsyncClient(base_url=url, transport=direct) as http,
            openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="sk-none", max_retries=0, http_client=like
            ) as sdk,
        ):
            yield url, http, sdk
        return
    server = HttpServer(app, listen("127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.port}"
    serving = asyncio.create_task(server.run())
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=20.0) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-none", max_retries=0) as sdk,
        ):
            yield url, http, sdk
    finally:
        await server.stop(serving, 2.0)
