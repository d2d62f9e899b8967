"""A service's transfer engine listens, checks and encrypts as its settings say."""

import socket
from pathlib import Path

import pytest

from moonpool.bus import MemoryBroker, MemoryBus
from moonpool.runtime import new_context, start_transfer, tls_files
from moonpool.settings import SettingsError, StoreSettings
from moonpool.transfer import BadTopology, Op, TransferRequest
from moonpool.transfer.topology import UNNAMED
from tests.support.certificates import certificates


def test_no_tls_is_asked_for_by_default() -> None:
    assert tls_files(StoreSettings()) is None


@pytest.mark.parametrize("missing", ["transfer_tls_cert", "transfer_tls_key", "transfer_tls_ca"])
def test_half_a_wish_for_tls_stops_the_start(missing: str) -> None:
    given = {"transfer_tls_cert": "a", "transfer_tls_key": "b", "transfer_tls_ca": "c"}
    with pytest.raises(SettingsError, match="MOONPOOL_TRANSFER_TLS_CERT"):
        tls_files(StoreSettings(**(given | {missing: ""})))


async def test_a_service_with_certificates_speaks_tls(tmp_path: Path) -> None:
    files = certificates("mesh")
    settings = StoreSettings(
        transfer_tls_cert=files.certificate,
        transfer_tls_key=files.key,
        transfer_tls_ca=files.authority,
    )
    context = new_context("store", settings, MemoryBus(MemoryBroker()))
    engine = await start_transfer(context, tmp_path)
    try:
        assert "rdma" in engine.unavailable
        assert {e.transport for e in engine.endpoints} == {"shm", "tcp"}
    finally:
        await engine.close()


async def test_a_service_looks_out_only_as_its_settings_say(tmp_path: Path) -> None:
    settings = StoreSettings(transfer_look_out=False)
    context = new_context("store", settings, MemoryBus(MemoryBroker()))
    engine = await start_transfer(context, tmp_path)
    try:
        assert engine.stats()["tcp.look_out"] == 0
    finally:
        await engine.close()


async def test_a_service_keeps_as_many_connections_as_its_settings_say(tmp_path: Path) -> None:
    settings = StoreSettings(transfer_endpoints_max=1)
    context = new_context("store", settings, MemoryBus(MemoryBroker()))
    engine = await start_transfer(context, tmp_path)
    peers = [await start_transfer(context, tmp_path, name=name) for name in ("one", "two")]
    try:
        local = engine.allocate(4096)
        for peer in peers:
            remote = engine.open(peer.allocate(4096).grant("r"))
            await engine.submit([TransferRequest(Op.READ, local, 0, remote, 0, 4096)])
        assert engine.stats()["shm.links_retired"] == 1
    finally:
        for each in (engine, *peers):
            await each.close()


async def test_several_addresses_are_nics_and_rank_as_the_topology_says(tmp_path: Path) -> None:
    settings = StoreSettings(
        listen_host="127.0.0.1,127.0.0.2",
        advertise_host="hostname,10.1.2.3",
        topology='{"cpu:0": [["eth9"], []]}',
    )
    context = new_context("store", settings, MemoryBus(MemoryBroker()))
    engine = await start_transfer(context, tmp_path)
    try:
        grant = engine.allocate(4096, "cpu:0").grant("r")
        ends = [e for e in grant.endpoints if e.transport == "tcp"]
        hosts = [e.address.rpartition(":")[0] for e in ends]
        assert hosts == [socket.gethostname(), "10.1.2.3"]
        assert [e.rank for e in ends] == [UNNAMED, UNNAMED]
    finally:
        await engine.close()


async def test_a_topology_that_cannot_be_stops_the_start(tmp_path: Path) -> None:
    context = new_context(
        "store", StoreSettings(topology=str(tmp_path / "none")), MemoryBus(MemoryBroker())
    )
    with pytest.raises(BadTopology, match="No such file"):
        await start_transfer(context, tmp_path)
