"""What `moonpool store` does with values: each action prints what it found and returns a status."""

import argparse
import asyncio
import json
import mmap
import sys
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moonpool.client import StoreClient

VERIFY_BATCH_BYTES = 64 << 20
VERIFY_BATCH_NAMES = 256

Action = Callable[["StoreClient", argparse.Namespace], Awaitable[int]]


async def put(store: "StoreClient", given: argparse.Namespace) -> int:
    with value_of(given.file) as value:
        taken = not await store.put(
            given.name, value, replace=given.replace, replicas=given.replicas
        )
        size_bytes = memoryview(value).nbytes
    if taken:
        return failed(f"{given.name} is taken (--replace puts it anew)")
    if given.durable and not await store.secure(given.name):
        return failed(f"{given.name} is stored, but no lower tier took it: a crash would lose it")
    print(f"{given.name}: {size_bytes} bytes")
    return 0


async def get(store: "StoreClient", given: argparse.Namespace) -> int:
    if given.range:
        value = await store.get_range(given.name, *range_of(given.range))
    else:
        value = await store.get(given.name)
    if value is None:
        return failed(f"no node has {given.name}")
    write = given.file.write_bytes if given.file else sys.stdout.buffer.write
    with file_errors(given.file):
        await asyncio.to_thread(write, value)
    return 0


async def ls(store: "StoreClient", given: argparse.Namespace) -> int:
    listed = [each async for each in store.list_names(given.name)]
    if given.json:
        print(json.dumps([{"name": each.name, "bytes": each.size_bytes} for each in listed]))
        return 0
    for each in listed:
        print(f"{each.size_bytes:>12} {each.name}")
    return 0


async def rm(store: "StoreClient", given: argparse.Namespace) -> int:
    if given.prefix:
        removed = await store.remove_prefix(given.name)
        print(f"{removed} values are gone")
        return 0
    if await store.remove(given.name):
        print(f"{given.name} is gone")
        return 0
    return failed(f"{given.name} is nowhere, or pinned hard")


async def size(store: "StoreClient", given: argparse.Namespace) -> int:
    size_bytes = await store.size(given.name)
    if size_bytes is None:
        return failed(f"no node has {given.name}")
    print(size_bytes)
    return 0


async def pin(store: "StoreClient", given: argparse.Namespace) -> int:
    kind = "hard" if given.hard else "soft"
    if await store.pin(given.name, kind, ttl_s=given.ttl):
        print(f"{given.name} is pinned" + ("" if given.hard else f" for {given.ttl:g} s"))
        return 0
    return failed(f"{given.name} is nowhere, or beyond a quota")


async def unpin(store: "StoreClient", given: argparse.Namespace) -> int:
    if await store.unpin(given.name):
        print(f"{given.name} is not pinned")
        return 0
    return failed(f"no node has {given.name}")


async def replicas(store: "StoreClient", given: argparse.Namespace) -> int:
    """Lists where a value lies, after adding to one node or dropping from another."""
    if given.add and not await store.add_replica(given.name, given.add):
        return failed(f"no node has {given.name}")
    if given.drop and not await store.drop_replica(given.name, given.drop):
        return failed(f"{given.drop} holds nothing of {given.name}")
    copies = await store.replicas(given.name)
    if copies is None:
        return failed(f"no node has {given.name}")
    if given.json:
        print(json.dumps(asdict(copies)))
        return 0
    print(f"{given.name}: {copies.size_bytes} bytes, named at {', '.join(copies.entries)}")
    for index, nodes in enumerate(copies.parts):
        print(f"  stripe {index}: {', '.join(nodes)}")
    return 0


async def verify(store: "StoreClient", given: argparse.Namespace) -> int:
    """Reads every value whose name begins so, end to end; 1 when any is damaged or cannot be
    read. What was evicted meanwhile is only counted."""
    checked = checked_bytes = gone = 0
    bad: dict[str, str] = {}
    batch: list[str] = []
    room_bytes = VERIFY_BATCH_BYTES

    async def check() -> None:
        nonlocal checked, checked_bytes, gone
        for name, result in (await store.get_many(batch)).items():
            if result.error is not None:
                bad[name] = f"{result.error.code}: {result.error}"
            elif result.value is None:
                gone += 1
            else:
                checked, checked_bytes = checked + 1, checked_bytes + len(result.value)
        batch.clear()

    async for each in store.list_names(given.name):
        if batch and (each.size_bytes > room_bytes or len(batch) == VERIFY_BATCH_NAMES):
            await check()
            room_bytes = VERIFY_BATCH_BYTES
        batch.append(each.name)
        room_bytes -= each.size_bytes
    await check()
    report = {"sound": checked, "bytes": checked_bytes, "gone": gone, "bad": bad}
    if given.json:
        print(json.dumps(report))
    else:
        print(f"{checked} values of {checked_bytes} bytes are sound, {gone} were gone")
        for name, why in bad.items():
            print(f"  {name}: {why}")
    return 1 if bad else 0


ACTIONS: dict[str, Action] = {
    "put": put,
    "get": get,
    "ls": ls,
    "rm": rm,
    "size": size,
    "pin": pin,
    "unpin": unpin,
    "replicas": replicas,
    "verify": verify,
}
NAMELESS = {"ls", "verify"}  # may go without: all names then


def failed(text: str) -> int:
    print(f"moonpool store: {text}", file=sys.stderr)
    return 1


def range_of(text: str) -> tuple[int, int]:
    """(start, length) of "START:LENGTH". Raises CallerError."""
    from moonpool.messages import CallerError

    start, colon, length = text.partition(":")
    if not (colon and start.isdigit() and length.isdigit()):
        raise CallerError(f"--range {text!r} is not START:LENGTH, in bytes")
    return int(start), int(length)


@contextmanager
def value_of(file: Path | None) -> "Iterator[bytes | memoryview]":
    """A file's bytes, which stay where they are; those of standard input for none or "-". Raises
    CallerError."""
    if file is None or str(file) == "-":
        yield sys.stdin.buffer.read()
        return
    with file_errors(file):
        value = map_file(file)
    # Unmapped when the last view of it has gone: whoever failed with one may hold it still.
    yield value


def map_file(file: Path) -> bytes | memoryview:
    """Its bytes; of what is no plain file all that comes. Raises OSError."""
    with file.open("rb") as opened:
        if file.stat().st_size == 0 or not file.is_file():
            return opened.read()
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


@contextmanager
def file_errors(file: Path | None) -> "Iterator[None]":
    """What the system says of a file, as an error of whoever named it. A reader that has gone is
    another matter."""
    from moonpool.messages import CallerError

    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CallerError(f"{file or 'standard output'}: {error.strerror or error}") from error
