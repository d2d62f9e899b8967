"""What is measured, each as medians over interleaved rounds."""

import asyncio
import statistics
import time
from dataclasses import dataclass

import nats
import numpy as np
from nats.aio.msg import Msg

from bench.e2e.asking import Asker
from bench.e2e.direct import DirectEngine

BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int
    stream_tokens: int
    chat_tokens: int


QUICK = Sizes(rounds=5, stream_tokens=96, chat_tokens=16)
FULL = Sizes(rounds=15, stream_tokens=256, chat_tokens=64)


class Prompts:
    """Token prompts that no cache has seen."""

    def __init__(self, vocabulary: int) -> None:
        self._random = np.random.default_rng(time.time_ns())
        self._vocabulary = vocabulary

    def fresh(self, tokens: int) -> list[int]:
        ids: list[int] = self._random.integers(100, self._vocabulary - 100, tokens).tolist()
        return ids


async def ttft_over_direct(
    asker: Asker, direct: DirectEngine, prompts: Prompts, sizes: Sizes
) -> dict[str, float]:
    """Time to first token of a cold 1k prompt: through the mesh, and the engine by itself."""
    mesh, alone = [], []
    for _ in range(sizes.rounds):
        alone.append(await asyncio.to_thread(direct.prefill_s, prompts.fresh(1024)))
        mesh.append((await asker.complete(prompts.fresh(1024), 1)).first_s)
    return {
        "mesh_ttft_over_direct": statistics.median(mesh) / statistics.median(alone),
        "ttft_1k_mesh_s": statistics.median(mesh),
        "ttft_1k_direct_s": statistics.median(alone),
    }


async def stream_over_direct(
    asker: Asker, direct: DirectEngine, prompts: Prompts, sizes: Sizes
) -> dict[str, float]:
    """Tokens per second of one stream: through the mesh, and the engine by itself."""
    mesh, alone = [], []
    for _ in range(sizes.rounds):
        prompt = prompts.fresh(200)
        alone.append(await asyncio.to_thread(direct.tokens_per_s, prompt, sizes.stream_tokens))
        timed = await asker.complete(prompt, sizes.stream_tokens, ignore_eos=True)
        mesh.append(timed.tokens_per_s)
    return {
        "tokens_per_s_mesh_over_direct": statistics.median(mesh) / statistics.median(alone),
        "tokens_per_s_mesh": statistics.median(mesh),
        "tokens_per_s_direct": statistics.median(alone),
    }


async def cached_over_cold(asker: Asker, prompts: Prompts, sizes: Sizes) -> dict[str, float]:
    """Time to first token of a 2k prompt, cold, and with all its full blocks cached elsewhere.

    The prefill's own pool has room for one such prompt only: a second one pushes the first out, so
    when the first comes again, its blocks lie in the store (and in the decode's pool).
    """
    cold, cached, hits = [], [], []
    for _ in range(sizes.rounds):
        first, second = prompts.fresh(2048), prompts.fresh(2048)
        cold.append((await asker.complete(first, 1)).first_s)
        cold.append((await asker.complete(second, 1)).first_s)
        again = await asker.complete(first, 1)
        cached.append(again.first_s)
        hits.append(again.cached_tokens)
    full = (2048 - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    return {
        "ttft_cached_over_cold": statistics.median(cached) / statistics.median(cold),
        "ttft_2k_cold_s": statistics.median(cold),
        "ttft_2k_cached_s": statistics.median(cached),
        "cached_tokens_share": min(hits) / full,
    }


async def many_chats(asker: Asker, sizes: Sizes) -> dict[str, float | bool]:
    """32 chats at once."""
    started_s = time.perf_counter()
    ended = await asyncio.gather(
        *(
            asker.chat(f"Name {n + 2} animals.", sizes.chat_tokens, ignore_eos=True)
            for n in range(32)
        ),
        return_exceptions=True,
    )
    good = [t for t in ended if not isinstance(t, BaseException)]
    complete = [t for t in good if t.tokens == sizes.chat_tokens and t.finish == "length"]
    seconds = time.perf_counter() - started_s
    return {
        "chats32_ok": len(complete) == 32,
        "chats32_tokens_per_s": sum(t.tokens for t in good) / seconds,
    }


async def gateway_overhead(
    asker: Asker, nats_url: str, prompts: Prompts, sizes: Sizes
) -> dict[str, float]:
    """From the client's send of a 2k-token prompt to the plan request on NATS, seen from outside:
    HTTP, checks, keys and the way to this subscriber included."""
    seen_s: list[float] = []
    client = await nats.connect(nats_url)

    async def note(_: Msg) -> None:
        seen_s.append(time.perf_counter())

    await client.subscribe("mp.conductor.plan", cb=note)
    await client.flush()
    overheads_ms = []
    for _ in range(sizes.rounds * 2):
        seen_s.clear()
        timed = await asker.complete(prompts.fresh(2048), 1)
        overheads_ms.append((seen_s[0] - timed.sent_s) * 1e3)
    await client.close()
    return {"gateway_overhead_ms_p50": statistics.median(overheads_ms)}
