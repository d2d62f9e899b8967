"""`moonpool up`: a whole mesh on this machine, until Ctrl-C or `moonpool down`."""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_mesh_options, add_verb, state_folder

if TYPE_CHECKING:
    from services.cli.mesh import LocalMesh, MeshRecord
    from services.cli.options import Verbs

PORT = 8080
NATS_PORT = 4222
ROLES = ("prefill", "decode", "store", "colocated", "gateway", "conductor")
EXAMPLES = """\
  moonpool up
  moonpool up --prefill 2 --decode 2 --store 2
  moonpool up --colocated 1                  the small mode: no separate prefill and decode
  moonpool up --model /models/my-llama --dtype float32 --port 8081
  moonpool up --name second --port 8090      beside the first
  MOONPOOL_KV_POOL_BYTES=268435456 moonpool up --detach

settings of the services (MOONPOOL_*) are taken from the environment: docs/configuration.md
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "up", "start a mesh on this machine", EXAMPLES, run)
    add_mesh_options(parser)
    add_json_option(parser)
    for role in ROLES:
        parser.add_argument(f"--{role}", type=int, metavar="N", help=f"{role} processes")
    parser.add_argument("--model", help="Hugging Face id or local folder")
    parser.add_argument(
        "--dtype",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="of weights and KV (default: as the model says)",
    )
    parser.add_argument("--port", type=int, help=f"of the API (default {PORT}); 0: any free one")
    parser.add_argument(
        "--nats-port", type=int, help=f"default {NATS_PORT} when it is free, else any free one"
    )
    parser.add_argument("--no-s3", action="store_true", help="without the S3 server")
    parser.add_argument("--detach", action="store_true", help="return as soon as it is ready")


def run(given: argparse.Namespace) -> int:
    return _detach(given) if given.detach else asyncio.run(_serve(given))


class _Progress:
    """Lines on standard error, with the seconds since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def __call__(self, line: str) -> None:
        try:
            print(f"[{self.elapsed_s:5.1f} s] {line}", file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone; the mesh goes on or stops by its signal
            return


def counts_of(given: argparse.Namespace) -> dict[str, int]:
    """Processes per role; `--colocated` alone means no separate prefill and decode."""
    counts = {role: getattr(given, role) for role in ROLES}
    alone = counts["colocated"] and counts["prefill"] is None and counts["decode"] is None
    defaults = {role: 0 if role == "colocated" else 1 for role in ROLES}
    if alone:
        defaults |= {"prefill": 0, "decode": 0}
    return {role: defaults[role] if n is None else n for role, n in counts.items()}


def _mesh(given: argparse.Namespace, progress: _Progress) -> "LocalMesh":
    from services.cli.mesh import DEFAULT_MODEL, LocalMesh
    from services.cli.mesh.ports import prefer

    env = {k: v for k, v in os.environ.items() if k.startswith("MOONPOOL_")}
    port = given.port if given.port is not None else int(env.get("MOONPOOL_HTTP_PORT", PORT))
    counts = counts_of(given)
    return LocalMesh(
        prefill=counts["prefill"],
        decode=counts["decode"],
        store=counts["store"],
        colocated=counts["colocated"],
        gateway=counts["gateway"],
        conductor=counts["conductor"],
        model=given.model or env.get("MOONPOOL_MODEL", DEFAULT_MODEL),
        dtype=given.dtype or env.get("MOONPOOL_DTYPE", "auto"),
        port=port,
        nats_port=prefer(NATS_PORT) if given.nats_port is None else given.nats_port,
        s3=not given.no_s3,
        env=env,
        state_dir=state_folder(given).root,
        progress=progress,
    )


async def _serve(given: argparse.Namespace) -> int:
    from services.cli.mesh.supervise import supervise

    progress = _Progress()
    stop = _stop_on_signals()
    mesh = _mesh(given, progress)
    starting = asyncio.ensure_future(mesh.__aenter__())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            progress("stopping")
            starting.cancel()
            await asyncio.wait({starting})
            return 130
        await starting  # raises what went wrong
        _announce(given, mesh, progress)
        supervising = asyncio.ensure_future(supervise(mesh, progress))
        await asyncio.wait({supervising, stopping}, return_when=asyncio.FIRST_COMPLETED)
        progress("stopping")
        supervising.cancel()
        await asyncio.wait({supervising})
        return 0
    finally:
        stopping.cancel()
        await mesh.stop()
        if stop.is_set():
            progress(f"stopped; logs stay in {mesh.logs_dir}")


def _stop_on_signals() -> asyncio.Event:
    """Set by the first signal. The second one ends this process at once: the kernel ends the
    services with it, and the reaper removes the files."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    return stop


def _announce(given: argparse.Namespace, mesh: "LocalMesh", progress: _Progress) -> None:
    if given.json:
        print(_as_json(mesh.url, mesh.nats_url, mesh.s3_url, str(mesh.logs_dir), mesh.model_name))
        sys.stdout.flush()
        return
    progress("ready")
    print(
        _summary(given, mesh.url, mesh.nats_url, mesh.s3_url, str(mesh.logs_dir), mesh.model_name)
    )
    sys.stdout.flush()


def _as_json(url: str, nats_url: str, s3_url: str, logs: str, model: str) -> str:
    return json.dumps(
        {
            "url": url,
            "metrics_url": f"{url}/metrics",
            "nats_url": nats_url,
            "s3_url": s3_url,
            "logs": logs,
            "model": model,
        }
    )


def _summary(
    given: argparse.Namespace, url: str, nats_url: str, s3_url: str, logs: str, model: str
) -> str:
    key = " -H 'authorization: Bearer KEY'" if os.environ.get("MOONPOOL_API_KEYS") else ""
    question = {"role": "user", "content": "Who are you?"}
    body = json.dumps({"model": model, "temperature": 0.2, "messages": [question]})
    name = f" --name {given.name}" if given.name != "default" else ""
    s3 = f"\n  S3       {s3_url} (keys: {state_folder(given).root}/mesh.json)" if s3_url else ""
    return f"""
  API      {url}/v1
  metrics  {url}/metrics
  NATS     {nats_url}{s3}
  logs     {logs}

  curl {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{body}'

  moonpool chat{name}      talk to it
  moonpool status{name}    who is there, and how busy
  moonpool down{name}      stop it (here: Ctrl-C)
"""


def _detach(given: argparse.Namespace) -> int:
    """Starts the same command in the background and waits until its mesh is ready."""
    folder = state_folder(given)
    folder.logs.mkdir(parents=True, exist_ok=True)
    log = folder.logs / "launcher.log"
    arguments = [each for each in sys.argv[1:] if each != "--detach"]
    before = folder.held()
    with log.open("wb") as output:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "services.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
    with log.open() as lines:
        while True:
            for line in lines:
                print(line, end="", file=sys.stderr, flush=True)
            if launcher.poll() is not None:
                return launcher.returncode or 1
            record = None if before else folder.read()
            if record is not None and record.ready and record.pid == launcher.pid:
                _announce_record(given, record)
                return 0
            time.sleep(0.05)


def _announce_record(given: argparse.Namespace, record: "MeshRecord") -> None:
    shown = (record.url, record.nats_url, record.s3_url, record.logs, record.model)
    print(_as_json(*shown) if given.json else _summary(given, *shown))
