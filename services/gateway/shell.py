"""The gateway as a process: what starts in which order, what runs, and how it ends.

HTTP answers from the first moment (`/live`, and 503 with the reason elsewhere), while the tokenizer
is found and loaded. At the end new requests are refused first, then those under way get some time.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path

from moonpool.engine.fetch import resolve_model
from moonpool.runtime import Heart, Members, ServiceContext
from moonpool.settings import GatewaySettings
from services.gateway.gateway import Gateway
from services.gateway.routes import create_app
from services.gateway.server import HttpServer, listen
from services.gateway.text_model import TextModel, TokenizerUnusable, load_text_model

DRAIN_S = 8.0  # for requests under way, at the end
FETCH_TIMEOUT_S = 1800.0
FLUSH_S = 3.0  # for audit events and cancels that wait, at the end


async def run_gateway(context: ServiceContext[GatewaySettings]) -> None:
    """Until cancelled. Raises what stops the start: a taken port, bad keys, an unusable model."""
    settings = context.settings
    members = Members(
        context.bus,
        context.subjects,
        context.clock,
        on_change=lambda change: gateway.member_changed(change),
    )
    gateway = Gateway(context, members)
    server = HttpServer(create_app(gateway), listen(settings.http_host, settings.http_port))
    heart = Heart(context.bus, context.subjects, context.clock, context.registration())
    context.log.info("listening", extra={"url": f"http://{settings.http_host}:{server.port}"})
    async with members, heart, asyncio.TaskGroup() as group:
        auditing = group.create_task(gateway.audit.run(), name="audit")
        serving = asyncio.get_running_loop().create_task(server.run(), name="http")
        try:
            name, text = await _load(context)
            gateway.serve_model(name, text)
            heart.set_state("ready")
            await asyncio.wait({serving})
            serving.result()
        finally:
            gateway.draining = True
            heart.set_state("draining")
            await server.stop(serving, DRAIN_S)
            auditing.cancel()
            await gateway.audit.flush(FLUSH_S)
            await gateway.close(FLUSH_S)


async def _load(context: ServiceContext[GatewaySettings]) -> tuple[str, TextModel]:
    """The model's name and its text side; fetched first when it is not on this machine yet."""
    settings, log = context.settings, context.log
    folder = Path(settings.cache_dir) if settings.cache_dir else None
    find = partial(resolve_model, settings.model, cache_dir=folder, progress=log.info)
    try:
        files = await asyncio.to_thread(find)
    except ImportError:  # it must be converted first, which takes torch: not in this process
        await _fetch(context)
        files = await asyncio.to_thread(find)
    return files.name, await asyncio.to_thread(load_text_model, files.path)


async def _fetch(context: ServiceContext[GatewaySettings]) -> None:
    """Fetches and converts the model in a process of its own, its progress in our log."""
    settings = context.settings
    folder = ["--cache-dir", settings.cache_dir] if settings.cache_dir else []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "moonpool.engine.fetch", settings.model, *folder),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = ""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            async for line in process.stderr:
                said = line.decode("utf-8", "replace").strip()
                context.log.info("%s", said)
            status = await process.wait()
    except TimeoutError:
        said, status = f"not fetched within {FETCH_TIMEOUT_S:.0f} s", 1
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        raise TokenizerUnusable(f"{settings.model} could not be fetched: {said}")
