"""Gets and puts beside Mooncake Store: two processes each, the same sizes, one operation at a time,
registered memory on both sides."""

import itertools

from bench.store.mooncake import MooncakeClient, RivalFailed, mooncake
from bench.store.ours import OurStore
from bench.store.rounds import Compared, compare, say

MIB, KIB = 1 << 20, 1 << 10
THEIRS = "mooncake 0.3.13.post1, tcp"
OURS = "moonpool, tcp"
BATCH = 64
SEEN = {
    "local_get_over_mooncake": "moonpool, shm, copied",
    "local_get_over_in_process": "moonpool, shm, copied",
    "local_view_over_in_process": "moonpool, shm, seen in place",
}

_numbers = itertools.count()


async def versus_mooncake(
    remote: OurStore, local: OurStore, rounds: int
) -> tuple[list[Compared], str]:
    """(what was compared, why not all of it or "")."""
    done: list[Compared] = []
    try:
        say("gets and puts through tcp, beside mooncake")
        async with mooncake(local=False) as theirs:
            for name, size_bytes, count in [
                ("get_4MiB_over_mooncake", 4 * MIB, 16),
                ("get_256KiB_over_mooncake", 256 * KIB, 48),
            ]:
                done.append(await _gets(name, remote, theirs, size_bytes, count, rounds))
            done.append(await _puts(remote, theirs, 4 * MIB, 16, rounds))
            done.append(await _batches(remote, theirs, 4 * KIB, 12, rounds))
            done.append(await _exists(remote, theirs, 64, rounds))
            say("gets on one host, beside mooncake from one process to the other")
            compared = await _gets("local_get_over_mooncake", local, theirs, 4 * MIB, 16, rounds)
            compared.ours = SEEN[compared.name]
            done.append(compared)
        say("gets on one host, beside mooncake within one process")
        async with mooncake(local=True) as theirs:
            for name in ("local_get_over_in_process", "local_view_over_in_process"):
                compared = await _gets(name, local, theirs, 4 * MIB, 16, rounds)
                compared.ours = SEEN[name]
                compared.theirs = "mooncake, its own segment, copied unverified"
                done.append(compared)
    except RivalFailed as error:
        return done, str(error)
    return done, ""


async def _gets(
    name: str, ours: OurStore, theirs: MooncakeClient, size_bytes: int, count: int, rounds: int
) -> Compared:
    prefix = f"g{next(_numbers)}-"
    await ours.put(prefix, size_bytes, count)
    await theirs.put(prefix, size_bytes, count)
    compared = Compared(name, OURS, THEIRS, size_bytes)
    get = ours.view if name.startswith("local_view") else ours.get
    await compare(
        compared,
        lambda: get(prefix, size_bytes, count),
        lambda: theirs.get(prefix, size_bytes, count),
        rounds,
    )
    await ours.clear(prefix, count)
    await theirs.clear()
    return compared


async def _puts(
    ours: OurStore, theirs: MooncakeClient, size_bytes: int, count: int, rounds: int
) -> Compared:
    compared = Compared("put_4MiB_over_mooncake", OURS, THEIRS, size_bytes)

    async def our_round() -> list[float]:
        prefix = f"p{next(_numbers)}-"
        took_s = await ours.put(prefix, size_bytes, count)
        await ours.clear(prefix, count)
        return took_s

    async def their_round() -> list[float]:
        took_s = await theirs.put(f"p{next(_numbers)}-", size_bytes, count)
        await theirs.clear()
        return took_s

    await compare(compared, our_round, their_round, rounds)
    return compared


async def _batches(
    ours: OurStore, theirs: MooncakeClient, size_bytes: int, calls: int, rounds: int
) -> Compared:
    prefix, count = f"b{next(_numbers)}-", calls * BATCH
    await ours.put(prefix, size_bytes, count)
    await theirs.put(prefix, size_bytes, count)
    compared = Compared("batch64_4KiB_over_mooncake", OURS, THEIRS, size_bytes * BATCH)
    await compare(
        compared,
        lambda: ours.batch_get(prefix, size_bytes, calls, BATCH),
        lambda: theirs.batch_get(prefix, size_bytes, calls, BATCH),
        rounds,
    )
    await ours.clear(prefix, count)
    await theirs.clear()
    return compared


async def _exists(ours: OurStore, theirs: MooncakeClient, count: int, rounds: int) -> Compared:
    prefix = f"e{next(_numbers)}-"
    await ours.put(prefix, 4 * KIB, count)
    await theirs.put(prefix, 4 * KIB, count)
    compared = Compared("exists_over_mooncake", OURS, THEIRS, 0)
    await compare(
        compared, lambda: ours.exists(prefix, count), lambda: theirs.exists(prefix, count), rounds
    )
    return compared
