"""The second machine: starts, asks, kills and cuts off a peer, on the word of the first.

Words come as files in a folder that both machines share: `ask.N` holds one JSON line, `answer.N`
gets one. Words: start LENGTH, say LINE (to the peer, see transfer_child.py), kill, wire down or up,
and quit.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

SHARED = Path("/vmout")
ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "10.77.0.2"
PATIENCE_S = 600.0


def start(length: int) -> subprocess.Popen[str]:
    settings = {
        "name": "far",
        "host": ADDRESS,
        "folder": "/tmp",
        "length": length,
        "transports": ["rdma"],
        "rdma_device": "rxe0",
    }
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/contract/transfer_child.py"), json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'libs'}:{os.environ['PYTHONPATH']}"},
    )


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


class Machine:
    def __init__(self) -> None:
        self.peer: subprocess.Popen[str] | None = None

    def obey(self, word: str, what: Any) -> str:
        if word == "start":
            self.peer = start(int(what))
            return pipe(self.peer.stdout).readline()
        if word == "wire":
            subprocess.run(["ip", "link", "set", "eth0", str(what)], check=True)
            return str(what)
        assert self.peer is not None
        if word == "say":
            print(what, file=pipe(self.peer.stdin), flush=True)
            return pipe(self.peer.stdout).readline().strip()
        if word == "kill":
            self.peer.kill()
            self.peer.wait()
            return "killed"
        raise ValueError(word)


def main() -> None:
    machine = Machine()
    deadline_s = time.monotonic() + PATIENCE_S
    number = 0
    while time.monotonic() < deadline_s:
        asked = SHARED / f"ask.{number}"
        if not asked.exists():
            time.sleep(0.05)
            continue
        word, what = json.loads(asked.read_text())
        if word == "quit":
            break
        partial = SHARED / f"answer.{number}.partial"
        partial.write_text(machine.obey(word, what))
        partial.rename(SHARED / f"answer.{number}")
        number += 1
    if machine.peer is not None:
        machine.peer.kill()


if __name__ == "__main__":
    main()
