"""Pins of values that are more than one block: all of a value is pinned, or nothing of it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.client import StoreClient
from moonpool.messages import PeerError, TenantId
from moonpool.messages.quota import TenantQuota, encode_quota
from services.store.node import StoreNode
from tests.support.store_nodes import memory_client, memory_node
from tests.support.store_worlds import STRIPE_BYTES, make_value
from tests.support.until import until

HARD_BYTES = 2 * STRIPE_BYTES
SMALL, LARGE = 10_000, 20 * STRIPE_BYTES
PUBLIC = TenantId("public")


@dataclass
class Bounded:
    client: StoreClient
    nodes: list[StoreNode]

    def hard(self) -> int:
        """Keys pinned on any node; all nodes hear of each."""
        return len({key for node in self.nodes for key in node.core.pins.hard_keys()})

    def soft(self) -> int:
        return sum(node.core.pins.count("soft") for node in self.nodes)

    def hard_bytes(self) -> int:
        return sum(node.core.pins.bytes_by_tenant[PUBLIC] for node in self.nodes)


@asynccontextmanager
async def bounded() -> AsyncIterator[Bounded]:
    """Three nodes, on each of which the tenant may pin two stripes."""
    broker = MemoryBroker()
    quota = encode_quota(TenantQuota(hard_bytes=HARD_BYTES))
    await MemoryBus(broker).bucket("mp_quotas").put(PUBLIC, quota)
    ids = ["node-1", "node-2", "node-3"]
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                memory_node(broker, id, dram_bytes=24 << 20, host_id="here")
            )
            for id in ids
        ]
        await until(lambda: all(n.core.quotas.get(PUBLIC).hard_bytes for n in nodes))
        client = memory_client(broker, *ids, stripe_bytes=STRIPE_BYTES)
        yield Bounded(await stack.enter_async_context(client), nodes)


async def test_a_hard_pin_that_is_refused_leaves_nothing_pinned() -> None:
    async with bounded() as world:
        store = world.client
        await store.put_many({"large": make_value(LARGE), "small": make_value(SMALL)})
        assert not await store.pin("large", "hard")
        assert await store.pin("small", "hard")
        await until(lambda: world.hard() == 1)
        assert SMALL <= world.hard_bytes() < STRIPE_BYTES
        assert not await store.remove("small")
        assert await store.remove("large")
        assert await store.count() == 1


async def test_what_was_pinned_before_a_refusal_is_so_afterwards() -> None:
    async with bounded() as world:
        store = world.client
        await store.put("value", make_value(LARGE))
        assert await store.pin("value", "soft")
        assert world.soft() == 21
        assert not await store.pin("value", "hard")
        await until(lambda: (world.hard(), world.soft()) == (0, 21))


async def test_a_pin_that_holds_is_not_lost_when_it_is_asked_for_again_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bounded() as world:
        store = world.client
        await store.put("value", make_value(3 * STRIPE_BYTES))
        assert await store.pin("value", "hard")
        monkeypatch.setattr(world.nodes[1].core, "pin", broken)
        with pytest.raises(PeerError):
            await store.pin("value", "hard")
        assert world.hard() == 4
        assert not await store.remove("value")


async def test_a_node_that_fails_while_others_pin_leaves_nothing_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bounded() as world:
        store = world.client
        await store.put("value", make_value(3 * STRIPE_BYTES))
        monkeypatch.setattr(world.nodes[1].core, "pin", broken)
        with pytest.raises(PeerError):
            await store.pin("value", "hard")
        await until(lambda: world.hard() == 0)
        assert await store.remove("value")


def broken(*given: object) -> None:
    raise PeerError("no pins today")
