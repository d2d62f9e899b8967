"""A host that is gone without a word, as if it lost its power: its streams give up their place."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from moonpool.transfer import TransferEngine, vectored
from moonpool.transfer.transports.fences import naming, new_name
from moonpool.transfer.transports.tcp import split_address
from moonpool.transfer.wire import REPLY_BYTES, Frame, WireOp, pack_hello
from tests.net.conftest import WIRES
from tests.net.links import Host
from tests.support.until import until

pytestmark = pytest.mark.slow
SIZE = 100
SPEAK = """
import socket, sys
host, port, words, answer_bytes = sys.argv[1:]
sock = socket.create_connection((host, int(port)), 5.0)
sock.sendall(bytes.fromhex(words))
assert len(sock.makefile("rb").read(int(answer_bytes))) == int(answer_bytes)
print("served", flush=True)
sys.stdin.read()
"""


async def test_streams_of_a_host_that_vanished_end_by_themselves(
    hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectored, "VANISHED_S", 3)
    monkeypatch.setattr(vectored, "KEEPALIVE_IDLE_S", 1)
    monkeypatch.setattr(vectored, "KEEPALIVE_EVERY_S", 1)
    near, far = hosts
    engine = await TransferEngine.start(
        "near", host_id="near", run_dir=tmp_path, listen_host=near.address(0, 4), transports=["tcp"]
    )
    try:
        grant = engine.allocate(SIZE).grant("r")
        hello = pack_hello(grant.epoch)
        frame = Frame(WireOp.READ, 1, 1, grant.region, SIZE, grant.key, 0, SIZE)
        words = hello + naming(new_name()) + frame.pack()
        answer_bytes = len(hello) + REPLY_BYTES + SIZE
        peer = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", far.namespace, sys.executable, "-c", SPEAK),
            *map(str, split_address(grant.endpoints[0].address)),
            *(words.hex(), str(answer_bytes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(os.environ),
        )
        try:
            assert peer.stdout is not None
            assert (await asyncio.wait_for(peer.stdout.readline(), 10.0)).strip() == b"served"
            assert engine.stats()["tcp.streams_served"] == 1
            for wire in range(WIRES):
                near.swallow(wire)
            await until(lambda: engine.stats()["tcp.streams_served"] == 0, 20.0)
            assert peer.returncode is None  # it never knew
        finally:
            await asyncio.wait_for(peer.communicate(b""), 10.0)  # the end of its input
    finally:
        await engine.close()
