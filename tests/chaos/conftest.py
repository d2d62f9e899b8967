"""A real mesh that tests may break: each puts back what it broke."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from moonpool.bus import NatsBus
from moonpool.engine import resolve_model
from services.cli.mesh.local import LocalMesh
from tests.e2e.conftest import Mesh
from tests.support.instances import Hand
from tests.support.reference import Reference
from tests.support.until import until


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference(resolve_model("smollm2-135m-instruct").path, "float32")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mesh() -> AsyncIterator[Mesh]:
    env = {"MOONPOOL_TOKEN_SILENCE_S": "4", "MOONPOOL_SLO_TTFT_S": "120", "MOONPOOL_SLO_TBT_S": "5"}
    async with LocalMesh(
        prefill=2, decode=2, store=2, conductor=2, dtype="float32", env=env
    ) as local:
        bus = await NatsBus.connect(local.nats_url, name="chaos-hand")
        hand = Hand(bus)
        await hand.start(conduct=False)
        await until(lambda: len(hand.members) >= 9, 20.0)
        yield Mesh(local, hand)
        await bus.close()
