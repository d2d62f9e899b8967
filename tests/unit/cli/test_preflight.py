"""What is missing is said in one line, before anything starts."""

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from moonpool.settings import SettingsError
from services.cli.mesh import MachineTooSmall, MeshRefused, MeshShape, ports, preflight, servers

GIB = 1 << 30


def test_a_taken_port_is_named_with_its_holder_and_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MeshRefused, match=rf"port {port} is taken by .*--port \d+"):
            preflight.check_port(port)


def test_free_ports_are_distinct_and_free() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert all(ports.is_free(port) for port in found)


def test_memory_is_the_sum_of_pools_segments_weights_and_processes() -> None:
    env = {"MOONPOOL_KV_POOL_BYTES": str(2 * GIB), "MOONPOOL_DRAM_BYTES": str(3 * GIB)}
    needed = preflight.memory_needed_bytes(MeshShape(prefill=2, decode=1, store=2), env, GIB)
    assert needed == 3 * (2 * GIB + GIB + preflight.PROCESS_BYTES) + 2 * 3 * GIB


def test_too_little_memory_says_how_to_need_less() -> None:
    env = {"MOONPOOL_KV_POOL_BYTES": str(1 << 50)}
    with pytest.raises(MachineTooSmall, match=r"MOONPOOL_KV_POOL_BYTES"):
        preflight.check_memory(MeshShape(), env, 0)


def test_a_bad_setting_stops_the_start_by_name() -> None:
    with pytest.raises(SettingsError, match="MOONPOOL_DRAM_BYTES"):
        preflight.check_memory(MeshShape(), {"MOONPOOL_DRAM_BYTES": "much"}, 0)


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(MachineTooSmall, match=str(tmp_path)):
        preflight.check_disk(tmp_path)


def test_a_missing_server_says_where_it_comes_from() -> None:
    with pytest.raises(MeshRefused, match=r"no-such-server is missing.*some-package.*make setup"):
        servers.find_program("no-such-server", "some-package")


@pytest.mark.parametrize(
    "counts", [{"prefill": 0}, {"decode": 0}, {"gateway": 0}, {"conductor": 0}, {"store": -1}]
)
def test_a_mesh_that_could_never_answer_is_refused(counts: dict[str, Any]) -> None:
    with pytest.raises(MeshRefused):
        MeshShape(**counts).check()


def test_a_colocated_instance_alone_is_a_mesh() -> None:
    shape = MeshShape(prefill=0, decode=0, colocated=1)
    shape.check()
    assert dict(shape.names()) == {
        "conductor-1": "conductor",
        "store-1": "store",
        "colocated-1": "colocated",
        "gateway-1": "gateway",
    }
