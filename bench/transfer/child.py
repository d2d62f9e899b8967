"""One process of a side: it answers lines on stdin with lines on stdout, both JSON.

Standard library and numpy only, since it also runs in the environments of rivals. A side's server
prints one line when it is ready, for the client's first line to bring along.
"""

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.transfer.shapes import BUFFER_BYTES, Shape

Bytes = npt.NDArray[np.uint8]
Call = Callable[[int], None]  # moves what lies at one place, and returns when it is there
CALLS_MAX = 4000
CALLS_MIN = 3
_PR_SET_PDEATHSIG = 1


def begin() -> None:
    """First of all: dies with its parent, even while it is stopped; keeps stdout for answers."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    global _answers
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr


_answers = sys.stdout


def say(answer: dict[str, Any]) -> None:
    _answers.write(json.dumps(answer) + "\n")
    _answers.flush()


def hear() -> dict[str, Any]:
    """The next line. The process ends with its parent's interest in it."""
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    heard: dict[str, Any] = json.loads(line)
    return heard


def pattern(seed: int) -> Bytes:
    """Bytes that tell one place from another."""
    return np.random.default_rng(seed).integers(0, 256, BUFFER_BYTES, dtype=np.uint8)


def shared_buffer() -> Bytes:
    """Touched pages of a memory file, which other processes can map."""
    fd = os.memfd_create("bench", os.MFD_CLOEXEC)
    os.ftruncate(fd, BUFFER_BYTES)
    array = np.frombuffer(mmap.mmap(fd, BUFFER_BYTES), np.uint8)
    array[:] = 1
    os.close(fd)
    return array


def private_buffer() -> Bytes:
    """Touched pages of the process's own, huge ones where the kernel has them: the best memory for
    whoever does not need to share it."""
    array = np.empty(BUFFER_BYTES, np.uint8)  # numpy asks for huge pages by itself
    array[:] = 1
    return array


def asked(question: dict[str, Any]) -> tuple[str, Shape, float]:
    return question["op"], Shape(question["size"], question["count"]), question["seconds"]


def measure(call: Call, shape: Shape, seconds: float) -> dict[str, Any]:
    """Calls one after the other for so long, walking through the buffer."""
    call(0)
    took_s: list[float] = []
    start = at = time.perf_counter()
    while len(took_s) < CALLS_MAX and (at - start < seconds or len(took_s) < CALLS_MIN):
        call(len(took_s) % shape.places)
        now = time.perf_counter()
        took_s.append(now - at)
        at = now
    return summary(took_s, at - start, shape)


def summary(took_s: list[float], wall_s: float, shape: Shape) -> dict[str, Any]:
    sorted_us = sorted(1e6 * s for s in took_s)
    return {
        "gb_per_s": len(took_s) * shape.payload / wall_s / 1e9,
        "p50_us": sorted_us[len(sorted_us) // 2],
        "p99_us": sorted_us[int(len(sorted_us) * 0.99)],
        "calls": len(took_s),
    }


def check(here: Bytes, move: Callable[[str, Shape], Call]) -> dict[str, Any]:
    """Whether bytes arrive: reads the server's pattern, writes another, wipes, and reads it back.
    A side whose bytes are wrong has no speed."""
    shape = Shape(1 << 20, 4)
    at = shape.offsets(0)
    span = slice(0, at[-1] + shape.stride)
    mask = np.zeros(span.stop, bool)
    for offset in at:
        mask[offset : offset + shape.size] = True
    read, write = move("read", shape), move("write", shape)
    expected = pattern(1)[span]
    here[span] = 0
    read(0)
    arrived = bool((here[span][mask] == expected[mask]).all() and not here[span][~mask].any())
    ours = expected[::-1].copy()
    here[span] = ours
    write(0)
    here[span] = 0
    read(0)
    returned = bool((here[span][mask] == ours[mask]).all())
    return {"read_ok": arrived, "write_ok": returned}


def serve(move: Callable[[str, Shape], Call], here: Bytes | None = None) -> None:
    """The client's life: questions until the parent is gone. `move(op, shape)` prepares calls; the
    preparation is not measured. `here` is the local buffer where there is a remote one to check."""
    say(check(here, move) if here is not None else {"read_ok": True, "write_ok": True})
    while True:
        op, shape, seconds = asked(hear())
        try:
            say(measure(move(op, shape), shape, seconds))
        except Exception as error:  # noqa: BLE001  whatever a library raises is an answer
            say({"error": f"{type(error).__name__}: {error}"[:300]})
