"""How fast the conductor thinks: `python -m bench.conductor [--quick] [--json]`.

One core, no network: matching prompts in an index of a million blocks, applying block events, and
whole decisions on a mesh of a hundred instances.
"""

import argparse
import gc
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import OwnerId, RequestId, TenantId
from moonpool.messages.load import ComputeSample, LoadReport, StepSample
from moonpool.messages.plan import PlanRequest
from moonpool.messages.registry import Heartbeat, ModelRecord, Registration
from services.conductor.core import ConductorCore, Policy
from services.conductor.index import BlockIndex
from services.conductor.places import Place

KEY_BYTES = 16
BLOCK_TOKENS = 64
INSTANCES = 100
PROMPT_TOKENS = 16_384
MODEL = ModelRecord("m", b"f" * 32, "{}", BLOCK_TOKENS, 20 << 20, 80, 131072, "bfloat16")
USABLE = (1 << 256) - 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done; `--quick` does less of the same."""

    index_blocks: int
    calls: int
    decisions: int


QUICK = Sizes(1_000_000, 3_000, 1_500)
FULL = Sizes(4_000_000, 20_000, 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.conductor", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a million blocks, about 15 s")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, always the same
    sizes = QUICK if given.quick else FULL
    results = {**bench_index(sizes), **bench_decisions(sizes)}
    if given.json:
        print(json.dumps(results))
    else:
        for name, value in results.items():
            print(f"{name:32} {value:>14,}")


def bench_index(sizes: Sizes) -> dict[str, float]:
    """Events, memory and matches of one index. Half of it are 64-block chains, half 2,000-block."""
    rng = random.Random(1)
    half = sizes.index_blocks // 2
    short = [rng.randbytes(KEY_BYTES * 64) for _ in range(half // 64)]
    long = [rng.randbytes(KEY_BYTES * 2000) for _ in range(half // 2000)]
    index = BlockIndex()
    places = [index.places.take(OwnerId(f"o{i}"), "dram") for i in range(8)]
    gc.collect()
    before_bytes = _resident_bytes()
    stored_s = _timed(lambda: _store(index, places, [*short, *long], 0))
    blocks = len(index)
    bytes_per_block = (_resident_bytes() - before_bytes) / blocks
    again_s = _timed(lambda: _store(index, places, [*short, *long], 1))
    results = {
        "index_blocks": blocks,
        "events_blocks_per_s": round(blocks / stored_s),
        "events_replica_blocks_per_s": round(blocks / again_s),
        "memory_bytes_per_block": round(bytes_per_block, 1),
    }
    for name, chains in (("64", short), ("2000", long)):
        asked = [rng.choice(chains) for _ in range(sizes.calls)]
        missed = [rng.randbytes(len(chains[0])) for _ in range(200)]
        results |= _quantiles(f"match_{name}_us", asked, lambda keys: index.match(keys, USABLE))
        results |= _quantiles(f"miss_{name}_us", missed, lambda keys: index.match(keys, USABLE))
        results |= _quantiles(f"walk_{name}_us", asked, lambda keys: index.walk(keys, USABLE))
    removed = [*short[::4], *long[::4]]
    removed_blocks = sum(map(len, removed)) // KEY_BYTES
    removed_s = _timed(lambda: [index.remove(places[0], keys) for keys in removed])
    results["events_removed_blocks_per_s"] = round(removed_blocks / removed_s)
    index.retire(places[0])
    results["sweep_s"] = round(_timed(lambda: _sweep(index)), 3)
    return results


def _store(index: BlockIndex, places: list[Place], chains: list[bytes], shift: int) -> None:
    for i, keys in enumerate(chains):
        index.store(places[(i + shift) % len(places)], keys)


def _sweep(index: BlockIndex) -> None:
    while not index.sweep(100_000):
        pass


def bench_decisions(sizes: Sizes) -> dict[str, float]:
    """Whole plans for 16k-token prompts: 50 prefills, 50 decodes, 16 nodes on 25 hosts; a third of
    the prompts continue a chat, a third share a system prompt that many hold, a third are new."""
    rng = random.Random(2)
    core, now_s = _mesh(rng), 100.0
    full = PROMPT_TOKENS // BLOCK_TOKENS
    chats = [rng.randbytes(KEY_BYTES * full) for _ in range(600)]
    system = rng.randbytes(KEY_BYTES * 100)
    _fill(core, rng, chats, system)
    took: list[float] = []
    start = time.perf_counter()
    for i in range(sizes.decisions):
        kind = i % 3
        if kind == 0:
            keys = rng.choice(chats)
        elif kind == 1:
            keys = system + rng.randbytes(KEY_BYTES * (full - 100))
        else:
            keys = rng.randbytes(KEY_BYTES * full)
        request = PlanRequest(
            RequestId(f"r{i}"), TenantId("t"), "m", MODEL.fingerprint, keys, PROMPT_TOKENS, 256
        )
        now_s += 0.005
        before = time.perf_counter()
        reply = core.plan(request, now_s)
        took.append(time.perf_counter() - before)
        if i % 50 == 0:
            _report_all(core, now_s, 2 + i)
        assert reply.plan or reply.refusal
    total_s = time.perf_counter() - start
    took.sort()
    return {
        "decisions_per_s": round(len(took) / sum(took)),
        "decision_ms_p50": round(took[len(took) // 2] * 1e3, 3),
        "decision_ms_p99": round(took[int(len(took) * 0.99)] * 1e3, 3),
        "decisions_with_reports_per_s": round(len(took) / total_s),
        "plans": core.plans,
        "refusals": sum(core.refusals.values()),
    }


def _mesh(rng: random.Random) -> ConductorCore:
    core = ConductorCore(Policy(1000.0, 10.0, 1e6, 1e6))
    roles = ["prefill"] * (INSTANCES // 2) + ["decode"] * (INSTANCES // 2) + ["store"] * 16
    for i, role in enumerate(roles):
        model = None if role == "store" else MODEL
        registration = Registration(f"{role}{i}", role, "e", 1.0, f"h{i % 25}", "1", model=model)
        core.heartbeat(Heartbeat(registration, "ready"), 100.0)
        epoch = core.holdings.begin_snapshot(OwnerId(registration.id))
        assert epoch is not None
        core.holdings.apply_page(SnapshotPage(OwnerId(registration.id), epoch, 0, {}), epoch)
    prefills = [
        ComputeSample(n, p, 0.065 + 1.165e-4 * n + 7.13e-10 * n * (n + 2 * p))
        for n in (64, 512, 2048, 8192, 16384)
        for p in (0, 2048, 8192)
    ]
    steps = [StepSample(n, n * 8000, 0.026 + 1e-4 * n + 1e-8 * n * 8000) for n in range(1, 40)]
    for member in core.fleet:
        if member.role != "store":
            report = LoadReport(
                member.id,
                "e",
                1,
                queued_requests=rng.randrange(4),
                queued_tokens=rng.randrange(30000),
                running=rng.randrange(30),
                slots_total=10_000,
                context_tokens=rng.randrange(300_000),
                blocks_free=1 << 24,
                blocks_total=1 << 24,
                compute=prefills if member.role == "prefill" else [],
                steps=steps if member.role == "decode" else [],
            )
            core.load(report, 100.0)
    return core


def _fill(core: ConductorCore, rng: random.Random, chats: list[bytes], system: bytes) -> None:
    """Chats lie on a prefill, a decode and a node each, of different lengths; the system prompt is
    everywhere."""
    seqs: dict[str, int] = {}

    def hold(id: str, role: str, keys: bytes) -> None:
        seqs[id] = seqs.get(id, 0) + 1
        tier = "dram" if role == "store" else "hbm"
        core.events(KvEvents(OwnerId(id), "e", seqs[id], tier, stored=keys))

    for member in core.fleet:
        hold(member.id, member.role, system)
    by_role = {role: core.fleet.of_roles([role]) for role in ("prefill", "decode", "store")}
    for keys in chats:
        for role, members in by_role.items():
            held = rng.randrange(1, len(keys) // KEY_BYTES + 1)
            hold(rng.choice(members).id, role, keys[: held * KEY_BYTES])


def _report_all(core: ConductorCore, now_s: float, seq: int) -> None:
    for member in core.fleet:
        old = member.load
        if old:
            report = LoadReport(
                member.id,
                "e",
                seq,
                queued_requests=old.queued_requests,
                queued_tokens=old.queued_tokens,
                running=old.running,
                slots_total=old.slots_total,
                context_tokens=old.context_tokens,
                blocks_free=old.blocks_free,
                blocks_total=old.blocks_total,
            )
            core.load(report, now_s)


def _quantiles(name: str, inputs: list[bytes], call: Callable[[bytes], object]) -> dict[str, float]:
    took = []
    for keys in inputs:
        before = time.perf_counter()
        call(keys)
        took.append(time.perf_counter() - before)
    took.sort()
    return {
        f"{name}_p50": round(took[len(took) // 2] * 1e6, 2),
        f"{name}_p99": round(took[int(len(took) * 0.99)] * 1e6, 2),
    }


def _timed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
