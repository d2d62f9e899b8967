"""Sends requests to a mesh: in an open loop at a rate, or in a closed loop to find its capacity."""

import asyncio
import time
from collections.abc import Sequence

import httpx

from bench.e2e.asking import Asker, Refused
from bench.overload.arrivals import Arrival, shapes
from bench.overload.outcome import Answer, Promise

PATIENCE = 3.0  # a client leaves when its promise is missed so many times over


async def open_loop(
    asker: Asker, arrivals: Sequence[Arrival], window_s: float, promise: Promise
) -> list[Answer]:
    """Sends each at its time. Returns when the last had its chance; who still waits has left."""
    began_s = time.perf_counter()
    leaves_s = window_s + PATIENCE * promise.ttft_s
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_come(asker, a, began_s, leaves_s)) for a in arrivals]
    return [task.result() for task in tasks]


async def _come(asker: Asker, arrival: Arrival, began_s: float, leaves_s: float) -> Answer:
    await asyncio.sleep(began_s + arrival.at_s - time.perf_counter())
    left_s = began_s + leaves_s - time.perf_counter()
    try:
        async with asyncio.timeout(left_s):
            return await ask(asker, arrival.prompt, arrival.output_tokens)
    except TimeoutError:
        return Answer(failed="left")


async def ask(asker: Asker, prompt: Sequence[int], output_tokens: int) -> Answer:
    try:
        timed = await asker.complete(prompt, output_tokens, ignore_eos=True)
    except Refused as refusal:
        return Answer(refused=refusal.reason)
    except (RuntimeError, httpx.HTTPError) as error:
        return Answer(failed=type(error).__name__)
    if not timed.times_s:
        return Answer(failed="silent")
    tbt_s = (timed.times_s[-1] - timed.times_s[0]) / max(1, timed.tokens - 1)
    return Answer(ttft_s=timed.first_s, tbt_s=tbt_s)


async def capacity_per_s(asker: Asker, clients: int, seconds: float, seed: int) -> float:
    """Requests that end per second when `clients` always have one under way."""
    ended = 0
    source = shapes(seed)
    until_s = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal ended
        while time.perf_counter() < until_s:
            answer = await ask(asker, *next(source))
            ended += answer.answered

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one())
    return ended / (time.perf_counter() - until_s + seconds)
