"""The node as a service: memory, bus, registration, and the way out."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from moonpool.bus import NoResponder, RequestTimeout
from moonpool.cache import make_policy
from moonpool.kv import BlockKey
from moonpool.messages.codec import encode
from moonpool.messages.errors import CallerError
from moonpool.messages.quota import pins_bucket, quotas_bucket
from moonpool.messages.registry import Registration
from moonpool.messages.store import StatsRequest
from moonpool.runtime import (
    EventPublisher,
    Heart,
    Members,
    ServiceContext,
    say_hello,
    start_transfer,
)
from moonpool.settings import SettingsError, StoreSettings
from moonpool.transfer import TransferEngine
from services.store.absences import Absences
from services.store.collecting import settle_for_good
from services.store.company import in_company
from services.store.core import StoreCore
from services.store.endpoints import node_endpoints
from services.store.http_service import http_door, http_if_wanted
from services.store.keeping import KeepFolder
from services.store.limits import Limits
from services.store.line_desk import LineDesk
from services.store.lower import Lower, make_lower
from services.store.memory import TooLittleMemory, require_memory
from services.store.node import StoreNode
from services.store.report import Reporter
from services.store.restore import keep, restore
from services.store.rules import Rules
from services.store.tiers import DramTier

PROBE_S = 1.0
FAREWELL_MAX_S = 3600.0
DRAIN_MAX_S = 60.0  # readers get so long after a drain before the node leaves anyway
DRAIN_LOOK_S = 0.1
TOLD_S = 1.0  # after a drain, for whoever follows it to ask how it ended
RULES_MAX_S = 2.0  # for quotas and pins, before the node serves
SINK_MAX_S = 3.0  # for what lower tiers can still take before the node leaves

Context = ServiceContext[StoreSettings]


class DuplicateNode(CallerError):
    code = "duplicate_id"


async def serve(context: Context) -> None:
    """Serves until cancelled, or until a drain is over. Raises TooLittleMemory, DuplicateNode,
    PortTaken, SettingsError, RegistrationRefused."""
    async with running_node(context) as node:
        settle_for_good()
        await node.drained.wait()
        context.log.info("draining")
        await node.say_farewell(min(node.drain_within_s, FAREWELL_MAX_S))
        facts = {name: node.core.counters[f"drain_{name}"] for name in ("moved", "left", "failed")}
        context.log.info("given away", extra=facts)
        node.core.counters["drain_over"] = 1
        await context.clock.sleep(TOLD_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_MAX_S):
                while not node.is_idle:
                    await context.clock.sleep(DRAIN_LOOK_S)


@asynccontextmanager
async def running_node(context: Context) -> AsyncIterator[StoreNode]:
    """A node that serves while inside. An error of one of its tasks ends the block."""
    settings = context.settings
    lower = make_lower(settings, context.id)
    core = make_core(settings, lower)
    tier = core.residents.tier
    require_memory(tier.bytes_total)
    await _require_alone(context)
    with run_folder(settings) as folder, http_door(settings) as door:
        transfer = await start_transfer(context, folder)
        try:
            try:
                region = transfer.allocate(tier.bytes_total)
            except OSError as error:
                raise TooLittleMemory(f"no segment of {tier.bytes_total} bytes: {error}") from error
            shelves = {each.shelf.name: each.shelf.packed_keys for each in lower}
            events = EventPublisher(context, {tier.name: core.live_keys, **shelves})

            def on_changes(tier: str, stored: list[BlockKey], removed: list[BlockKey]) -> None:
                events.stored(tier, stored)
                events.removed(tier, removed)

            node = StoreNode(core, region, context.clock, on_changes, context.bus.payload_max_bytes)
            node.on_relist = events.relist
            lines = LineDesk(node, transfer)
            try:
                await _open_lower(context, node, lower)
                async with (
                    events,
                    _on_the_bus(context, node, transfer, events, lines),
                    http_if_wanted(context, folder, door),
                ):
                    yield node
                await _keep(context, node)
            except asyncio.CancelledError:  # a stop; after an error nothing is kept
                await _keep(context, node)
                raise
            finally:
                await lines.close()
                node.close()
        finally:
            await transfer.close()


async def _keep(context: Context, node: StoreNode) -> None:
    """For the next start, if one is to be expected."""
    folder = keep_folder(context)
    if folder is not None and not node.drained.is_set():
        await keep(node, folder)


def keep_folder(context: Context) -> KeepFolder | None:
    """Where dram is kept over restarts; None: nowhere."""
    where = context.settings.dram_keep_dir
    return KeepFolder(Path(where) / context.id) if where else None


async def _open_lower(context: Context, node: StoreNode, lower: list[Lower]) -> None:
    """What lies on this machine is known before we serve; what is far away comes later."""
    for each in lower:
        node.mover.add(each.shelf, each.vault, each.threads)
        if each.vault.is_local:
            await node.mover.open(each.shelf.name)
            facts = {"tier": each.shelf.name, "blocks": each.shelf.live}
            if each.shelf.online:
                context.log.info("opened", extra=facts)
            else:
                context.log.warning("tier is away: %s", each.shelf.health, extra=facts)


@asynccontextmanager
async def _on_the_bus(
    context: Context,
    node: StoreNode,
    transfer: TransferEngine,
    events: EventPublisher,
    lines: LineDesk,
) -> AsyncIterator[None]:
    """Endpoints, heartbeat and reports. Leaving says goodbye first, so that nobody comes any more,
    and closes the endpoints last."""
    rules = make_rules(context, node)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RULES_MAX_S):
            await rules.read()
    registration = context.registration(transfer.endpoints)
    absences = Absences(context.id, node, context.bus, context.subjects, context.clock)
    node.more_stats = lambda: {**rules.stats(), **absences.stats()}
    if holds_kept(context, node):
        absences.begin_anew()
    verbs = node_endpoints(node, lines, absences, context.subjects, context.id)
    endpoints = [*verbs, events.endpoint()]
    service = await context.serve(endpoints, {"host_id": context.host_id})
    reporter = Reporter(context, node.core, transfer)
    tier = node.core.residents.tier
    context.log.info("serving", extra={"tier": tier.name, "bytes": tier.bytes_total})
    try:
        async with (
            in_company(context, node, transfer, absences) as (guard, members),
            _heart(context, registration, members) as heart,
            asyncio.TaskGroup() as group,
        ):
            folder = keep_folder(context)
            tasks = [
                group.create_task(node.keep(), name="store: time"),
                group.create_task(node.mover.run(), name="store: tiers"),
                group.create_task(rules.run(), name="store: rules"),
                group.create_task(absences.run(), name="store: absences"),
                group.create_task(guard.run(), name="store: copies"),
                group.create_task(reporter.run(), name="store: reports"),
                group.create_task(node.listing.run(context.clock), name="store: names"),
                group.create_task(_tell_draining(node, heart), name="store: drain"),
                group.create_task(say_hello(context, registration), name="store: hello"),
            ]
            if folder is not None:
                tasks.append(group.create_task(restore(node, folder), name="store: restore"))
            try:
                yield
            finally:
                node.core.drain()
                if keep_folder(context) is None or node.drained.is_set():
                    await node.sink(SINK_MAX_S)
                else:
                    await node.sink_pinned(SINK_MAX_S)
                for task in tasks:
                    task.cancel()
    finally:
        await service.close()
        await lines.close()


def holds_kept(context: Context, node: StoreNode) -> bool:
    """Whether an earlier life's objects are here, which others may have replaced since."""
    folder = keep_folder(context)
    is_below = any(shelf.live for shelf in node.core.ladder.shelves)
    return is_below or (folder is not None and folder.is_filled)


def _heart(context: Context, registration: Registration, members: Members) -> Heart:
    return Heart(
        context.bus,
        context.subjects,
        context.clock,
        registration,
        "ready",
        context.settings.state_file,
        company=lambda: members.company("store"),
    )


def make_rules(context: Context, node: StoreNode) -> Rules:
    """Quotas and pins of the mesh, for this node."""
    mesh = context.settings.mesh.replace(".", "_")
    quotas, pins = (context.bus.bucket(name(mesh)) for name in (quotas_bucket, pins_bucket))
    rules = Rules(node.core, quotas, pins, context.clock)
    node.wait_saved, node.more_stats = rules.wait_saved, rules.stats
    return rules


def make_core(settings: StoreSettings, lower: Sequence[Lower] = ()) -> StoreCore:
    """A core as the settings say. Raises SettingsError."""
    try:
        policy = make_policy(settings.eviction)
        tier = DramTier(settings.dram_bytes)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    limits = Limits(
        put_ttl_max_s=settings.put_ttl_s,
        lease_max_s=settings.lease_max_s,
        headroom=settings.headroom,
        demote_after_uses=settings.demote_after_uses,
        demote_by=settings.demote_by,
    )
    try:
        return StoreCore(tier, policy, limits, [each.shelf for each in lower])
    except ValueError as error:
        raise SettingsError(f"MOONPOOL_DEMOTE_AFTER_USES: {error}") from error


@contextmanager
def run_folder(settings: StoreSettings) -> Iterator[str]:
    """The folder for Unix sockets: the one that was set, or one made for this run."""
    if settings.run_dir:
        yield settings.run_dir
        return
    with tempfile.TemporaryDirectory(prefix="moonpool-") as folder:
        yield folder


async def _tell_draining(node: StoreNode, heart: Heart) -> None:
    await node.drained.wait()
    heart.set_state("draining")


async def _require_alone(context: Context) -> None:
    """Two nodes of one name would answer for each other's memory. Raises DuplicateNode."""
    subject = context.subjects.store(context.id, "stats")
    with contextlib.suppress(NoResponder, RequestTimeout):
        await context.bus.request(subject, encode(StatsRequest()), timeout_s=PROBE_S)
        raise DuplicateNode(f"a node {context.id!r} is on the mesh already: choose another id")
