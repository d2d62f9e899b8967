"""The gateway as a process, on a real NATS server: it starts, answers, and ends as told."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.nats_server import NatsServer, free_port
from tests.support.until import until
from tests.unit.gateway.tiny import tiny_tokenizer

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-chat"
    tiny_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def start(nats: NatsServer, **settings: object) -> "subprocess.Popen[str]":
    given = {"nats_url": nats.url, **settings}
    own = {f"MOONPOOL_{name.upper()}": str(value) for name, value in given.items()}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MOONPOOL_")}
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'libs'}"}
    return subprocess.Popen(
        [sys.executable, "-m", "services.gateway"],
        env=kept | paths | own,
        stderr=subprocess.PIPE,
        text=True,
    )


def memory_maps(pid: int) -> str:
    """The files that a process has mapped; "" where the system does not tell."""
    maps = Path(f"/proc/{pid}/maps")
    return maps.read_text() if maps.exists() else ""


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Its exit status, and what it said."""
    _, said = process.communicate(timeout=20.0)
    return process.returncode, said


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=5.0) as opened:
        yield opened


async def answers(client: httpx.AsyncClient, url: str, lacking: str) -> bool:
    try:
        told = (await client.get(f"{url}/ready")).json()
    except httpx.TransportError:
        return False
    return lacking not in told["missing"]


async def test_it_starts_alone_says_what_it_waits_for_and_stops_on_sigterm(
    nats: NatsServer, model: Path, client: httpx.AsyncClient
) -> None:
    port = free_port()
    process = start(nats, model=model, http_port=port)
    try:
        url = f"http://127.0.0.1:{port}"
        await until(lambda: answers(client, url, "the tokenizer is still loading"), 20.0)
        ready = await client.get(f"{url}/ready")
        assert ready.status_code == 503
        assert ready.json()["missing"][0] == "no conductor"
        assert "libtorch" not in memory_maps(process.pid)
        taken = start(nats, model=model, http_port=port)
        status, said = ended(taken)
        assert status == 2
        assert f"port {port}" in said
    finally:
        process.send_signal(signal.SIGTERM)
        status, said = ended(process)
    assert status == 0
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_keys": "bad"}, "MOONPOOL_API_KEYS"),
        ({"body_max_bytes": -1}, "MOONPOOL_BODY_MAX_BYTES"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_what_cannot_work_stops_the_start_and_names_itself(
    nats: NatsServer, model: Path, settings: dict[str, object], words: str
) -> None:
    status, said = ended(start(nats, **{"model": model, "http_port": 0, **settings}))
    assert status == 2
    assert words in said
    assert "Traceback" not in said
