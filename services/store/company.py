"""A node among others: copies that several are to hold, and what it gives away when it leaves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moonpool.runtime import Members, ServiceContext
from moonpool.runtime.members_core import Change
from moonpool.settings import StoreSettings
from moonpool.transfer import TransferEngine
from services.store.absences import Absences
from services.store.farewell import Farewell
from services.store.guard import Guard
from services.store.node import StoreNode
from services.store.peers import Peers


@asynccontextmanager
async def in_company(
    context: ServiceContext[StoreSettings],
    node: StoreNode,
    transfer: TransferEngine,
    absences: Absences,
) -> AsyncIterator[tuple[Guard, Members]]:
    """Follows all nodes while inside; the guard's `run` is the caller's to start."""
    guards: list[Guard] = []

    def on_change(change: Change) -> None:
        for guard in guards:
            guard.changed(change)
        absences.changed(change)

    members = Members(
        context.bus,
        context.subjects,
        context.clock,
        on_change=on_change,
        calls=("store",),
    )
    peers = Peers(
        context.id,
        context.bus,
        context.subjects,
        members,
        transfer,
        node.region,
        node.core,
        context.clock,
    )
    node.spread.peers = peers
    guards.append(Guard(node.core, peers, context.clock))
    node.say_farewell = Farewell(node, peers, context.clock).run
    for shelf in node.core.ladder.shelves:
        if shelf.name == "oss":  # each block is evicted there by one node, not by all at once
            shelf.is_ours = peers.is_first
    absences.join(members)
    async with members:
        yield guards[0], members
