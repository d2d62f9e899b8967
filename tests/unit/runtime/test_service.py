"""Start and end of a real process: exit status and what it says."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.bus import NatsBus
from moonpool.messages.codec import decode
from moonpool.messages.registry import Goodbye
from moonpool.messages.subjects import Subjects
from tests.support.nats_server import NatsServer
from tests.support.until import until

LIBS = str(Path(__file__).parents[3] / "libs")

PROGRAM = """
import asyncio, sys
from moonpool.messages import CapacityError, CallerError
from moonpool.runtime import Heart, background, run_service
from moonpool.settings import StoreSettings

async def body(context):
    mode = context.settings.id
    if mode == "refused":
        raise CallerError("model mismatch: layers 30 != 24", code="fingerprint_mismatch")
    if mode == "broken":
        raise ZeroDivisionError("ouch")
    if mode == "done":
        return
    async with Heart(context.bus, context.subjects, context.clock, context.registration()):
        if mode == "background":
            async def fail():
                raise ZeroDivisionError("behind the scenes")
            background(fail(), "worker")
        print("ready", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            if mode == "stuck":
                await asyncio.shield(asyncio.Event().wait())
            print("drained", flush=True)

sys.exit(run_service("store", StoreSettings, body, grace_s=0.3))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(jetstream=False) as server:
        yield server


async def start(url: str, id: str, *arguments: str, **more: str) -> Process:
    environ = {"PYTHONPATH": LIBS, "MOONPOOL_NATS_URL": url, "MOONPOOL_ID": id, **more}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, env=environ, stdout=PIPE, stderr=PIPE
    )


async def finish(process: Process) -> tuple[int, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 20.0)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def ready(process: Process) -> None:
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 20.0) == b"ready\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_says_goodbye_and_exits_with_0(
    server: NatsServer, number: signal.Signals
) -> None:
    bus = await NatsBus.connect(server.url)
    left: list[str] = []

    async def note(subject: str, payload: bytes) -> None:
        left.append(decode(payload, Goodbye).id)

    await bus.subscribe(Subjects().goodbye, note)
    process = await start(server.url, "n1")
    await ready(process)
    process.send_signal(number)
    status, out, err = await finish(process)
    assert (status, out) == (0, "drained\n"), err
    assert "msg=stopped" in err
    await until(lambda: left == ["n1"])
    await bus.close()


async def test_a_signal_ends_a_service_that_still_waits_for_its_server() -> None:
    process = await start(NatsServer().url, "n1")
    assert process.stderr is not None
    while b"waiting for a server" not in await asyncio.wait_for(process.stderr.readline(), 20.0):
        pass
    process.terminate()
    status, _, _ = await finish(process)
    assert status == 0


@pytest.mark.parametrize(
    ("id", "status", "said"),
    [
        ("refused", 2, 'msg="model mismatch: layers 30 != 24" code=fingerprint_mismatch'),
        ("broken", 1, "ZeroDivisionError: ouch"),
        ("background", 1, "behind the scenes"),
        ("done", 0, "msg=done"),
        ("bad.id", 2, "store: id 'bad.id' must be"),
    ],
)
async def test_the_way_it_ends_is_the_exit_status(
    server: NatsServer, id: str, status: int, said: str
) -> None:
    got, _, err = await finish(await start(server.url, id))
    assert got == status, err
    assert said in err
    if id == "refused":
        assert "Traceback" not in err


async def test_a_body_that_never_drains_is_given_up(server: NatsServer) -> None:
    process = await start(server.url, "stuck")
    await ready(process)
    process.terminate()
    status, _, err = await finish(process)
    assert status == 1
    assert "gave up draining" in err


async def test_a_bad_setting_and_a_stray_argument_stop_the_start(server: NatsServer) -> None:
    status, _, err = await finish(await start(server.url, "n1", MOONPOOL_DRAM_BYTES="-1"))
    assert status == 2
    assert err.startswith("store: MOONPOOL_DRAM_BYTES='-1'")
    status, out, _ = await finish(await start(server.url, "n1", "--help"))
    assert status == 0
    assert "MOONPOOL_NATS_URL" in out
    status, _, _ = await finish(await start(server.url, "n1", "--nonsense"))
    assert status == 2
