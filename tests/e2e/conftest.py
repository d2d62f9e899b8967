"""One real mesh for all end-to-end tests: two of each, on two "hosts", in float32."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from moonpool.bus import NatsBus
from moonpool.engine import resolve_model
from services.cli.mesh.local import LocalMesh
from tests.support.instances import Hand
from tests.support.reference import Reference
from tests.support.until import until


@dataclass
class Mesh:
    """The processes, and a hand on their bus."""

    local: LocalMesh
    hand: Hand

    @property
    def url(self) -> str:
        return self.local.url


@pytest.fixture(scope="session")
def model_path() -> Path:
    return resolve_model("smollm2-135m-instruct").path


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Reference:
    """transformers' own generate, in float32."""
    return Reference(model_path, "float32")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mesh(model_path: Path) -> AsyncIterator[Mesh]:
    # Numbers 1 share a host and its shared memory, numbers 2 another: between them only TCP works.
    hosts = {
        f"{role}-{number}": {"MOONPOOL_HOST_ID": f"host-{number}"}
        for role in ("prefill", "decode", "store")
        for number in (1, 2)
    }
    env = {"MOONPOOL_TOKEN_SILENCE_S": "6", "MOONPOOL_SLO_TTFT_S": "120", "MOONPOOL_SLO_TBT_S": "5"}
    async with LocalMesh(
        prefill=2, decode=2, store=2, dtype="float32", env=env, service_env=hosts
    ) as local:
        bus = await NatsBus.connect(local.nats_url, name="test-hand")
        hand = Hand(bus)
        await hand.start(conduct=False)
        await until(lambda: len(hand.members) >= 8, 20.0)
        yield Mesh(local, hand)
        await bus.close()
