"""`moonpool down`: ends the mesh that runs on this machine."""

import argparse
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from services.cli.options import add_mesh_options, add_verb, state_folder

if TYPE_CHECKING:
    from services.cli.mesh import StateFolder
    from services.cli.options import Verbs

GRACE_S = 45.0
KILLED_WITHIN_S = 10.0
EXAMPLES = """\
  moonpool down
  moonpool down --name second
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(
        verbs, "down", "stop the mesh that runs here, leaving only its logs", EXAMPLES, run
    )
    add_mesh_options(parser)


def run(given: argparse.Namespace) -> int:
    folder = state_folder(given)
    if not folder.held():
        folder.clear()  # of one that was killed
        print("no mesh runs here")
        return 0
    record = folder.read()
    if record is None:
        print("moonpool down: a mesh is just starting or stopping; try again", file=sys.stderr)
        return 1
    pids = [record.pid, *record.pids.values()]
    _signal(record.pid, signal.SIGTERM)
    if not _gone(folder, pids, GRACE_S):
        print(f"not stopped within {GRACE_S:.0f} s: killing it", file=sys.stderr)
        _signal(record.pid, signal.SIGKILL)  # the kernel ends its services with it
        if not _gone(folder, pids, KILLED_WITHIN_S):
            print(f"moonpool down: still running: {_alive(pids)}", file=sys.stderr)
            return 1
        folder.clear()
    print(f"stopped; logs stay in {record.logs}")
    return 0


def _gone(folder: "StateFolder", pids: list[int], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while folder.held() or _alive(pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _alive(pids: list[int]) -> list[int]:
    import psutil

    return [p for p in pids if psutil.pid_exists(p) and not _zombie(p)]


def _zombie(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
