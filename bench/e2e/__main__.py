"""Starts a mesh of its own, measures it against the engine in this process, and stops it.

All figures are medians of rounds in which both sides take turns, with the same threads and dtype.
"""

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import httpx

from bench.e2e import measures
from bench.e2e.asking import Asker
from bench.e2e.direct import DirectEngine
from bench.e2e.equality import equal_tokens
from moonpool.engine import resolve_model
from services.cli.mesh.local import LocalMesh

MODEL = "smollm2-135m-instruct"
CHUNK_TOKENS = 512
BLOCK_BYTES = {"float32": 64 * 46_080, "bfloat16": 64 * 23_040}
BASELINE = "the same engine called in-process: same prompts, threads, dtype and chunks"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def run(sizes: measures.Sizes, dtype: str) -> dict[str, Any]:
    files = resolve_model(MODEL, progress=say)
    say("loading the engine in this process")
    direct = await asyncio.to_thread(DirectEngine, files.path, dtype, CHUNK_TOKENS)
    # the prefill's pool holds one prompt of 2k tokens and a little more: see cached_over_cold
    small = {"MOONPOOL_KV_POOL_BYTES": str(40 * BLOCK_BYTES[dtype])}
    env = {"MOONPOOL_CHUNK_TOKENS": str(CHUNK_TOKENS), "MOONPOOL_SLO_TTFT_S": "300"}
    results: dict[str, Any] = {"baseline": BASELINE, "dtype": dtype, "rounds": sizes.rounds}
    say("starting a mesh")
    async with (
        LocalMesh(dtype=dtype, env=env, service_env={"prefill-1": small}) as mesh,
        httpx.AsyncClient(timeout=300.0, limits=httpx.Limits(max_connections=64)) as client,
    ):
        asker = Asker(client, mesh.url, mesh.model_name)
        prompts = measures.Prompts(49_000)
        await asker.complete(prompts.fresh(300), 8, ignore_eos=True)  # warm
        direct.prefill_s(prompts.fresh(300))
        say("time to first token, mesh and direct")
        results |= await measures.ttft_over_direct(asker, direct, prompts, sizes)
        say("one stream, mesh and direct")
        results |= await measures.stream_over_direct(asker, direct, prompts, sizes)
        say("cached elsewhere, and cold")
        results |= await measures.cached_over_cold(asker, prompts, sizes)
        say("gateway overhead")
        results |= await measures.gateway_overhead(asker, mesh.nats_url, prompts, sizes)
        say("32 chats at once")
        results |= await measures.many_chats(asker, sizes)
        say("equality")
        if dtype == "float32":
            results["equal_tokens"] = await equal_tokens(asker, files.path)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.e2e", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about two minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object, last on stdout")
    parser.add_argument(
        "--dtype",
        choices=sorted(BLOCK_BYTES),
        default="float32",
        help="float32 (default) also checks equality token for token",
    )
    given = parser.parse_args()
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    sizes = measures.QUICK if given.quick else measures.FULL
    results = asyncio.run(run(sizes, given.dtype))
    if given.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:32} {value:>14.4g}" if isinstance(value, float) else f"{name:32} {value}")


if __name__ == "__main__":
    main()
