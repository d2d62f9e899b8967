"""From settings to an instance at work, and back: loads the model, registers, serves, drains."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from moonpool.bus import Endpoint
from moonpool.cache import EvictionPolicy, make_policy
from moonpool.client.blocks import BlockStore
from moonpool.engine import resolve_model
from moonpool.engine.torch_engine import TorchEngine, load_engine
from moonpool.instance.core import InstanceCore, Limits
from moonpool.instance.doors import Doors
from moonpool.instance.errors import Preempted
from moonpool.instance.links import Links
from moonpool.instance.memory import PoolMemory
from moonpool.instance.observe import Observations
from moonpool.instance.prompts import OutputBlocks, Prompts
from moonpool.instance.reads import PoolReads
from moonpool.instance.report import Reporter
from moonpool.instance.store_writer import StoreWriter
from moonpool.instance.sums import SumCache
from moonpool.instance.watchdog import Watchdog
from moonpool.instance.worker import Worker
from moonpool.kv import BlockKey, BlockPool
from moonpool.messages.registry import ModelRecord
from moonpool.runtime import (
    EventPublisher,
    Heart,
    ServiceContext,
    give_up,
    say_hello,
    start_transfer,
)
from moonpool.settings import SettingsError, WorkerSettings
from moonpool.transfer.engine import TransferEngine

STORE_TIMEOUT_S = 2.0  # a prompt waits for it, so an owner that hangs costs no more
DRAIN_S = 10.0  # that running answers get before they are continued elsewhere


async def run_instance(ctx: ServiceContext[WorkerSettings]) -> None:
    """The body of a prefill, decode or colocated service: until cancelled, then drains."""
    settings = ctx.settings
    async with AsyncExitStack() as stack:
        loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        stack.callback(loader.shutdown)
        loop = asyncio.get_running_loop()
        engine = await loop.run_in_executor(loader, _load, ctx)
        stack.callback(engine.close)
        run_dir = stack.enter_context(_run_dir(settings.run_dir))
        transfer = await start_transfer(ctx, run_dir)
        stack.push_async_callback(transfer.close)
        links, core = _assemble(ctx, engine, transfer, stack)
        await _serve(links, core, engine, transfer)


def _load(ctx: ServiceContext[WorkerSettings]) -> TorchEngine:
    settings = ctx.settings
    cache_dir = Path(settings.cache_dir) if settings.cache_dir else None
    files = resolve_model(settings.model, cache_dir=cache_dir, progress=ctx.log.info)
    ctx.log.info("loading model=%s path=%s", files.name, files.path)
    engine = load_engine(
        files.path,
        name=settings.model_name or files.name,
        revision=files.revision,
        dtype=settings.dtype,
        device=settings.device,
        block_tokens=settings.block_tokens,
        threads=settings.threads,
    )
    ctx.log.info("loaded dtype=%s device=%s", engine.spec.layout.dtype, engine.device)
    return engine


@contextmanager
def _run_dir(given: str) -> Iterator[str]:
    """The folder for sockets: the one given, or one that goes with us."""
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="moonpool-") as made:
        yield made


def _assemble(
    ctx: ServiceContext[WorkerSettings],
    engine: TorchEngine,
    transfer: TransferEngine,
    stack: AsyncExitStack,
) -> tuple[Links, InstanceCore]:
    settings, spec = ctx.settings, engine.spec
    blocks = settings.kv_pool_bytes // spec.layout.block_bytes
    if blocks < 2:
        raise SettingsError(
            f"MOONPOOL_KV_POOL_BYTES={settings.kv_pool_bytes} holds {blocks} blocks of "
            f"{spec.layout.block_bytes} bytes; give it room for two at least"
        )
    region = transfer.allocate(blocks * spec.layout.block_bytes)
    on_cpu = engine.device == "cpu"
    engine.attach_pool(blocks, region.view if on_cpu else None)
    helpers = ThreadPoolExecutor(2, thread_name_prefix="helper")
    stack.callback(helpers.shutdown)
    memory = PoolMemory(region, spec.layout, None if on_cpu else engine)
    store = BlockStore(ctx.bus, transfer, ctx.subjects, timeout_s=STORE_TIMEOUT_S)
    links = Links(ctx, transfer, store, memory, SumCache(2 * blocks), Observations(), helpers)
    block_tokens = spec.layout.block_tokens
    limits = Limits(
        block_tokens=block_tokens,
        context_tokens=spec.context_tokens,
        eos_token_ids=frozenset(spec.eos_token_ids),
        chunk_tokens=max(settings.chunk_tokens // block_tokens, 1) * block_tokens,
        sequences_max=settings.sequences_max,
        queue_max=settings.queue_max,
    )
    order = _eviction_order(settings.eviction, blocks)
    return links, InstanceCore(limits, BlockPool(blocks, spec.layout.block_bytes, order))


def _eviction_order(name: str, blocks: int) -> EvictionPolicy[BlockKey]:
    try:
        return make_policy(name, blocks)
    except ValueError as error:
        raise SettingsError(str(error)) from error


async def _serve(
    links: Links, core: InstanceCore, engine: TorchEngine, transfer: TransferEngine
) -> None:
    """Registers, then works until cancelled; a cancel drains first."""
    ctx = links.ctx
    registration = ctx.registration(transfer.endpoints, _record(engine))
    async with EventPublisher(ctx, {"hbm": core.pool.keys}) as events:
        registered, stop = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(_work(links, core, engine, events, registered, stop))
        try:
            await say_hello(ctx, registration)
            async with Heart(
                ctx.bus, ctx.subjects, ctx.clock, registration, "ready", ctx.settings.state_file
            ) as heart:
                registered.set()
                ctx.log.info("ready blocks=%d", core.pool.blocks_total)
                try:
                    await asyncio.wait({running})
                except asyncio.CancelledError:
                    heart.set_state("draining")
                    stop.set()
                    await asyncio.wait({running}, timeout=DRAIN_S + 2.0)
                    raise
                running.result()
        finally:
            await end_task(running)


async def end_task(task: "asyncio.Task[None]") -> None:
    """Cancels until it has ended: a cancel that comes while a message is being written can be
    swallowed below us, and one alone would then wait for ever."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


async def _work(
    links: Links,
    core: InstanceCore,
    engine: TorchEngine,
    events: EventPublisher,
    registered: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    """Endpoints, load reports and the step loop, until told to stop or cancelled."""
    ctx = links.ctx
    wake = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        writer = StoreWriter(links)
        prompts = Prompts(links, core, writer, tasks, wake)
        output = OutputBlocks(links, core, writer, tasks)
        doors = Doors(links, core, prompts, wake, engine.spec.identity.fingerprint())
        reads = PoolReads(links, core)
        endpoints: list[Endpoint] = [*reads.endpoints(), events.endpoint()]
        if ctx.role in ("prefill", "colocated"):
            endpoints += doors.prefill()
        if ctx.role in ("decode", "colocated"):
            endpoints += doors.decode()
        watchdog = Watchdog(ctx.settings.step_stall_s, partial(give_up, ctx.log))
        if ctx.role == "colocated":
            endpoints.append(doors.role())
        worker = Worker(links, core, engine, prompts, output, events, wake, watchdog)
        service = await ctx.serve(endpoints, {"model": engine.spec.identity.model})
        try:
            steps = tasks.create_task(worker.run(), name="steps")
            await registered.wait()
            guard = tasks.create_task(watchdog.run(), name="watchdog")
            reports = tasks.create_task(Reporter(links, core, doors, reads).run(), name="reports")
            await stop.wait()
            doors.draining = True
            await _drain(links, core, prompts, wake)
            reports.cancel()
            steps.cancel()
            guard.cancel()
        finally:
            await service.close()


async def _drain(links: Links, core: InstanceCore, prompts: Prompts, wake: asyncio.Event) -> None:
    """Lets what runs finish; what is left then is continued elsewhere."""
    clock = links.ctx.clock
    until_s = clock.now() + DRAIN_S
    while core.sequences() and clock.now() < until_s:
        await clock.sleep(0.05)
    left = core.sequences()
    if left:
        links.ctx.log.warning("shutting down with answers under way count=%d", len(left))
    for seq in left:
        error = Preempted("the instance is shutting down", code="draining", elsewhere=True)
        prompts.effects += core.end(seq, error, clock.now())
    wake.set()
    while prompts.effects and clock.now() < until_s + 1.0:
        await clock.sleep(0.01)


def _record(engine: TorchEngine) -> ModelRecord:
    spec = engine.spec
    return ModelRecord(
        model=spec.identity.model,
        fingerprint=spec.identity.fingerprint(),
        identity=json.dumps(asdict(spec.identity), sort_keys=True),
        block_tokens=spec.layout.block_tokens,
        block_bytes=spec.layout.block_bytes,
        layers=spec.layout.layers,
        context_tokens=spec.context_tokens,
        dtype=spec.layout.dtype,
    )
