"""A corpus of frames and packets: each is counted as its file says, and harms nobody."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moonpool.transfer.wire import REPLY_BYTES, Status, unpack_reply
from tests.contract.test_transfer_garbage import Target, make_target
from tests.contract.transfer_corpus import Script, World, files, script
from tests.support.until import until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture
async def tcp(folder: Path) -> AsyncIterator[Target]:
    async with make_target("tcp4", folder) as made:
        yield made


@pytest.fixture
async def shm(folder: Path) -> AsyncIterator[Target]:
    async with make_target("shm", folder) as made:
        yield made


def world(target: Target) -> World:
    keys = {"owner": target.key}
    keys |= {
        name: target.region.grant(rights).key for name, rights in (("reader", "r"), ("writer", "w"))
    }
    return World(target.pair.far.epoch, target.region.id, keys, target.content.tobytes())


def counted(target: Target) -> dict[str, float]:
    stats = target.pair.far.stats()
    return {
        "refused": stats["refusals"],
        "bad_frame": stats.get("tcp.bad_frames", 0) + stats.get("shm.bad_frames", 0),
        "corrupt": stats.get("tcp.frames_corrupt", 0),
    }


async def _heard(target: Target, made: Script) -> bytes:
    def talk() -> bytes:
        sock = target.greeted() if made.greeted else target.connect()
        return target.said_to(sock, *made.parts)

    return await asyncio.to_thread(talk)


async def _harmless(target: Target, made: Script) -> bytes:
    """Sends it; checks what was counted, and that nothing else happened. What was answered."""
    before = counted(target)
    heard = await _heard(target, made)
    expected = before | {made.expect: before[made.expect] + 1} if made.expect in before else before
    await until(lambda: counted(target) == expected, saying=f"{counted(target)}, {expected}")
    await until(lambda: not _served(target))
    assert counted(target) == expected
    await target.still_whole()
    return heard


def _served(target: Target) -> float:
    stats = target.pair.far.stats()
    return stats.get("tcp.streams_served", 0) + stats.get("shm.peers_served", 0)


@pytest.mark.parametrize("name", files("tcp"))
async def test_frames_of_the_corpus(tcp: Target, name: str) -> None:
    made = script("tcp", name, world(tcp))
    heard = await _harmless(tcp, made)
    if made.answer:
        status, request, _ = unpack_reply(heard[:REPLY_BYTES])
        assert (status, request) == (Status[made.answer.upper()], 7)
    elif made.greeted:
        assert heard == b""


@pytest.mark.parametrize("name", files("shm"))
async def test_packets_of_the_corpus(shm: Target, name: str) -> None:
    await _harmless(shm, script("shm", name, world(shm)))
