"""Greedy output equals transformers' generate when the prefix comes from a disk or a bucket."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from moonpool.bus import NatsBus
from moonpool.client import StoreClient
from moonpool.kv import BlockKey, block_keys
from moonpool.messages.ids import OwnerId
from moonpool.messages.plan import PrefixRun
from moonpool.messages.sampling import SamplingParams
from services.cli.mesh.local import LocalMesh
from tests.e2e.conftest import Mesh
from tests.support.instances import TENANT, Hand
from tests.support.prompts import all_prompts
from tests.support.reference import Reference
from tests.support.until import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)
DRAM_BYTES = 96 << 20  # 32 blocks
STORES = {"nvme": "store-1", "oss": "store-2"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiered(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """Two nodes with hardly any dram: below the one lies a disk, below the other a bucket."""
    env = {"MOONPOOL_DRAM_BYTES": str(DRAM_BYTES), "MOONPOOL_DEMOTE_AFTER_USES": "1"}
    folder = str(tmp_path_factory.mktemp("nvme"))
    nodes = {
        "store-1": {
            "MOONPOOL_NVME_DIR": folder,
            "MOONPOOL_NVME_BYTES": str(512 << 20),
            "MOONPOOL_OSS_ENDPOINT": "",
        }
    }
    async with LocalMesh(
        prefill=2, decode=1, store=2, s3=True, dtype="float32", env=env, service_env=nodes
    ) as local:
        bus = await NatsBus.connect(local.nats_url, name="test-hand")
        hand = Hand(bus)
        await hand.start(conduct=False)
        await until(lambda: len(hand.members) >= 6, 20.0)
        yield Mesh(local, hand)
        await bus.close()


async def tiers_of(store: StoreClient, node: str, keys: list[BlockKey]) -> set[str]:
    """Where they lie; looking moves nothing."""
    reply = await store.blocks.calls.get_start(node, TENANT, keys, 0.0)
    return {slot.tier if slot.status in ("hit", "loading") else "none" for slot in reply.slots}


async def sink(store: StoreClient, node: str, tier: str, keys: list[BlockKey]) -> None:
    """Puts other things, until nothing of `keys` is left in dram."""
    for number in range(60):
        if await tiers_of(store, node, keys) == {tier}:
            return
        await store.put(f"filler {number}", os.urandom(2_900_000))

        async def is_calm() -> bool:
            return (await store.stats())[node].counters["demoting"] == 0

        await until(is_calm, 20.0)
    raise AssertionError(f"{await tiers_of(store, node, keys)} is where the blocks are")


@pytest.mark.parametrize("tier", ["nvme", "oss"])
async def test_token_for_token_from_a_lower_tier(
    tiered: Mesh, reference: Reference, tier: str
) -> None:
    node, hand = STORES[tier], tiered.hand
    longest = sorted(all_prompts(reference).items(), key=lambda each: -len(each[1]))
    async with StoreClient.connect(tiered.local.nats_url, nodes=[node]) as store:
        for name, base in longest[:1]:
            mark = f"{name} by way of {tier}: "
            prompt = [*reference.tokenizer(mark, add_special_tokens=False).input_ids, *base]
            prompt = prompt[: 64 * 6 + 20]  # no more than dram's headroom takes at once
            want = reference.tokens(prompt, TOKENS)
            full, usable = len(prompt) // 64, (len(prompt) - 1) // 64
            assert full >= 2
            keys = block_keys(hand.root, prompt, 64)
            first = await hand.ask(
                prompt, prefill="prefill-1", decode_id="decode-1", store=node, sampling=GREEDY
            )
            assert first.tokens == want

            async def stored(keys: list[BlockKey] = keys) -> bool:
                return all(await store.blocks.exist(node, TENANT, keys))

            await until(stored)
            await sink(store, node, tier, keys)
            runs = [PrefixRun(OwnerId(node), tier, 0, full)]
            answer = await hand.ask(
                prompt, prefill="prefill-2", decode_id="decode-1", runs=runs, sampling=GREEDY
            )
            assert answer.tokens == want, f"{name} from {tier}"
            assert answer.cached == {tier: usable * 64}, name
