"""Random transfers between four processes, two of which are killed and stopped at random.

    python -m tests.soak.transfer --minutes 10 [--pace-ms 20] [--seed 1]

Prints what the two that live through it looked like at the start, in the middle and at the end;
exits with 1 when bytes were wrong, a transfer did not end, or memory, descriptors or threads leak.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.verdict import Sample, figures, leaks, troubles

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 4
SURVIVORS = 2
HOSTS = ("a", "a", "a", "b")  # who shares a host uses shm, others tcp
STOP_S = 20.0  # for a worker to end what it does


@dataclass
class Life:
    """One process of a worker."""

    process: asyncio.subprocess.Process
    samples: list[Sample] = field(default_factory=list)
    reader: asyncio.Task[None] | None = None

    async def read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.samples.append(json.loads(line))


@dataclass
class Outcome:
    survivors: list[list[Sample]]
    kills: int
    stops: int
    exits: list[int]  # of the survivors

    def problems(self) -> list[str]:
        found = []
        for number, samples in enumerate(self.survivors):
            live = [sample for sample in samples if "final" not in sample]
            last = samples[-1] if samples else {}
            said = [*leaks(live), *troubles(last)] if live else ["it said nothing"]
            if "final" not in last:
                said.append("it did not end when it was told to")
            found += [f"worker {number}: {text}" for text in said]
        found += [f"worker {n} exited with {code}" for n, code in enumerate(self.exits) if code]
        return found


async def soak(seconds: float, *, pace_s: float = 0.0, seed: int = 0, out: Path) -> Outcome:
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    kills = stops = 0
    async with contextlib.AsyncExitStack() as stack:
        lives = [await stack.enter_async_context(_life(i, pace_s, out)) for i in range(WORKERS)]
        while loop.time() < end_s:
            await asyncio.sleep(min(chance.uniform(0.5, 4.0), max(0.0, end_s - loop.time())))
            victim = chance.randrange(SURVIVORS, WORKERS)
            if chance.random() < 0.3:
                stops += 1
                await _pause(lives[victim], chance.uniform(0.1, 3.0))
            else:
                kills += 1
                with contextlib.suppress(ProcessLookupError):
                    lives[victim].process.kill()
                await lives[victim].process.wait()
                await asyncio.sleep(chance.choice((0.0, 0.5)))
                lives[victim] = await stack.enter_async_context(_life(victim, pace_s, out))
        exits = await asyncio.gather(*(_end(life) for life in lives[:SURVIVORS]))
    return Outcome([life.samples for life in lives[:SURVIVORS]], kills, stops, exits)


async def _pause(life: Life, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        life.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        life.process.send_signal(signal.SIGCONT)


async def _end(life: Life) -> int:
    """Tells it to stop; its exit status, -9 when it had to be killed."""
    assert life.process.stdin is not None
    life.process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            code = await life.process.wait()
    except TimeoutError:
        return -9
    if life.reader is not None:
        await life.reader
    return code


@contextlib.asynccontextmanager
async def _life(index: int, pace_s: float, folder: Path) -> AsyncIterator[Life]:
    """A fresh process, gone at the end whatever happened."""
    path = os.pathsep.join([str(ROOT / "libs"), str(ROOT)])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "tests/soak/transfer_worker.py"),
        *(str(index), str(WORKERS), str(folder), str(pace_s), HOSTS[index]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    life = Life(process)
    life.reader = asyncio.create_task(life.read())
    try:
        yield life
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await life.reader
        assert process.stdin is not None
        process.stdin.close()
        process._transport.close()  # type: ignore[attr-defined]  # its pipes, at once


def show(outcome: Outcome) -> str:
    lines = [f"{outcome.kills} kills, {outcome.stops} stops"]
    for number, samples in enumerate(outcome.survivors):
        if not samples:
            continue
        last = Counter(samples[-1])
        lines.append(
            f"worker {number}: {last['batches']:g} batches, {last['bytes'] / 1e9:.1f} GB, "
            f"{last['retries']:g} retries, "
            + ", ".join(f"{k} {v:g}" for k, v in sorted(last.items()) if "." in k)
        )
        for name, (start, middle, end) in figures(samples[:-1] or samples).items():
            lines.append(f"  {name}: {start:.1f} at the start, {middle:.1f} then, {end:.1f} last")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pace-ms", type=float, default=0.0, help="mean pause between batches")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="moonpool-soak-") as folder:
        outcome = asyncio.run(
            soak(
                options.minutes * 60,
                pace_s=options.pace_ms / 1000,
                seed=options.seed,
                out=Path(folder),
            )
        )
    print(show(outcome))
    problems = outcome.problems()
    print("\n".join(problems) if problems else "nothing leaked, nothing hung, no byte was wrong")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
