"""What a peer that is gone leaves behind in those who knew it: nothing."""

import gc
from pathlib import Path

import pytest

from moonpool.transfer import Op, TransferEngine, TransferRequest
from moonpool.transfer.transports.shm import ShmTransport
from moonpool.transfer.transports.tcp import TcpTransport
from tests.support.until import until

SIZE = 10_000


def _known(engine: TransferEngine, kind: str) -> int:
    transport = engine._transports[kind]
    if isinstance(transport, TcpTransport):
        return len(transport._paths)
    assert isinstance(transport, ShmTransport)
    return len(transport._links)


@pytest.mark.parametrize("kind", ["shm", "tcp"])
async def test_a_path_goes_with_its_last_connection_and_grant(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moonpool.transfer.transports.tcp_peer.IDLE_S", 0.05)

    async def start(name: str) -> TransferEngine:
        return await TransferEngine.start(name, host_id="h", run_dir=tmp_path, transports=(kind,))

    near = await start("near")
    try:
        local = near.allocate(SIZE)

        async def use_one_that_goes() -> None:
            far = await start("far")
            remote = near.open(far.allocate(SIZE).grant("rw"))
            for op in (Op.READ, Op.WRITE):
                await near.submit([TransferRequest(op, local, 0, remote, 0, SIZE)])
            await far.close()

        for _ in range(5):
            await use_one_that_goes()

        def forgotten() -> bool:
            gc.collect()
            return _known(near, kind) == 0

        await until(forgotten)
    finally:
        await near.close()
