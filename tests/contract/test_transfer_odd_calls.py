"""What makes no sense is said at once, and stands in nobody's way: after every odd call a proper
one works, on any transport."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from moonpool.messages.errors import BugError
from moonpool.messages.segments import Endpoint, RegionGrant
from moonpool.transfer import (
    BadTransfer,
    GrantRefused,
    LocalRegion,
    Op,
    OpenedGrant,
    PeerLost,
    Priority,
    TransferRequest,
)
from moonpool.transfer.job import Job
from moonpool.transfer.transports.tcp_peer import STREAMS_PER_PEER, TcpPath
from moonpool.transfer.transports.tcp_stream import Stream
from tests.contract.transfer_wiring import WIRINGS, Pair, array, fill, make_pair

SIZE = 4 << 20
FEW, MANY = 2, 100  # requests that are cut one by one, and in columns


@pytest.fixture(params=WIRINGS)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    async with make_pair(request.param, tmp_path) as made:
        yield made


class Asking:
    """Memory of both sides, and whether proper transfers between them work as they should."""

    def __init__(self, pair: Pair) -> None:
        self.engine = pair.near
        self.here: LocalRegion = pair.near.allocate(SIZE)
        self.there: LocalRegion = pair.far.allocate(SIZE)
        self.sent = fill(self.there, 1)
        self.grant: RegionGrant = self.there.grant("rw")
        self.remote: OpenedGrant = pair.near.open(self.grant)

    def request(self, **odd: Any) -> TransferRequest:
        proper = {
            "op": Op.READ,
            "local": self.here,
            "local_offset": 0,
            "remote": self.remote,
            "remote_offset": 0,
            "length": 10,
        }
        return TransferRequest(**{**proper, **odd})

    async def reads(self, grant: RegionGrant) -> None:
        await self.engine.submit([self.request(remote=self.engine.open(grant))], deadline_s=8.0)

    async def works(self) -> None:
        """Small and large, more often than any transport has streams; and nothing is left over."""
        for length in (10, 10, 10, 3 << 20, 10):
            array(self.here)[:] = 0
            await self.engine.submit([self.request(length=length)])
            assert np.array_equal(array(self.here)[:length], self.sent[:length])
            assert not array(self.here)[length:].any()
        assert np.array_equal(array(self.there), self.sent)
        assert self.engine.stats()["slices_under_way"] == 0
        assert self.engine.stats()["transfers_inside"] == 0


@pytest.fixture
async def asking(pair: Pair) -> Asking:
    made = Asking(pair)
    await made.works()
    return made


@pytest.mark.parametrize("count", [1, FEW, MANY])
async def test_numbers_that_are_not_whole_and_unknown_operations_start_nothing(
    asking: Asking, count: int
) -> None:
    numbers = ("local_offset", "remote_offset", "length")
    odd: list[dict[str, Any]] = [
        *({name: value} for name in numbers for value in (1.5, "1", None, 1 << 63, -1)),
        *({"op": value} for value in (None, "copy", 1, [])),
    ]
    for each in odd:
        with pytest.raises(BadTransfer):
            asking.engine.submit([asking.request(**each)] * count)
        with pytest.raises(BadTransfer):
            asking.engine.submit([*[asking.request()] * count, asking.request(**each)])
    await asking.works()


@pytest.mark.parametrize("count", [1, FEW, MANY])
async def test_whole_numbers_of_any_kind_are_numbers(asking: Asking, count: int) -> None:
    for number in (np.int64(7), np.uint8(7), np.int32(7)):
        odd = asking.request(local_offset=number, remote_offset=number, length=number)
        await asking.engine.submit([odd] * count)
        assert np.array_equal(array(asking.here)[7:14], asking.sent[7:14])
    await asking.works()


@pytest.mark.parametrize("count", [1, FEW, MANY])
async def test_an_operation_by_its_name_goes_the_right_way(asking: Asking, count: int) -> None:
    named = asking.request(op="read", length=1000)
    await asking.engine.submit([named] * count)
    assert np.array_equal(array(asking.here)[:1000], asking.sent[:1000])
    mixed = [asking.request(op=op, length=1000) for op in ("read", Op.READ)]
    await asking.engine.submit(mixed)
    assert not any(name.endswith(".write.bytes") for name in asking.engine.stats())
    await asking.works()


async def test_terms_that_make_no_sense_start_nothing(asking: Asking) -> None:
    terms: list[dict[str, Any]] = [
        *({"deadline_s": value} for value in (0, -1, math.nan, math.inf, "5", None)),
        *({"priority": value} for value in ("urgent", None, 1)),
    ]
    for odd in terms:
        with pytest.raises(BadTransfer):
            asking.engine.submit([asking.request()], **odd)
    await asking.engine.submit([asking.request()], deadline_s=5, priority=Priority.BACKGROUND)
    await asking.engine.submit([asking.request()], deadline_s=np.float32(5.0))
    await asking.works()


async def test_a_checksum_is_wanted_by_whatever_is_true(tmp_path: Path) -> None:
    async with make_pair("tcp4", tmp_path) as pair:
        asking = Asking(pair)
        wanted: Any = "yes"
        await asking.engine.submit([asking.request()], checksum=wanted)
        await asking.works()


ODD_GRANTS: list[dict[str, Any]] = [
    *({"key": key} for key in (b"", b"abc", bytes(17), "k" * 16, None)),
    *({"region": region} for region in (-1, 1 << 63, 1.5, None)),
    *({"offset": offset} for offset in (-5, 1 << 63, 1 << 64, 0.5)),
    *({"length": length} for length in (0, -1, 1 << 64, 1.5)),
    {"offset": 1 << 62, "length": (1 << 62) + 1},
    *({"epoch": epoch} for epoch in ("", "x" * 33, "é" * 10, 5)),
    *({"segment": name} for name in ("", "../x", "a\nb", 5)),
    *({"expires_unix_s": when} for when in (math.nan, math.inf, "never")),
    {"rights": 5},
    {"endpoints": 5},
]


async def test_a_grant_that_no_owner_issues_is_not_opened(asking: Asking) -> None:
    for odd in ODD_GRANTS:
        with pytest.raises(BadTransfer):
            asking.engine.open(msgspec.structs.replace(asking.grant, **odd))
    await asking.works()


async def test_a_grant_of_a_region_that_is_not_there_is_refused(asking: Asking) -> None:
    for region in (0, 1 << 40, (1 << 63) - 1):
        odd = asking.engine.open(
            msgspec.structs.replace(asking.grant, region=region, key=bytes(16))
        )
        with pytest.raises(GrantRefused):
            await asking.engine.submit([asking.request(remote=odd)])
    await asking.works()


HOSTS = ("a" * 300, "a..b", "a b", "é" * 300, "a\0b", "[", "%", "no.such.host.invalid")


async def test_an_address_that_leads_nowhere_costs_nobody_else_anything(
    pair: Pair, asking: Asking
) -> None:
    ways = [Endpoint(e.transport, e.address) for e in asking.grant.endpoints]
    for host in HOSTS:
        for address in (host, f"{host}:1", f"/{host}"):
            ends = [Endpoint(way.transport, address) for way in ways]
            odd = msgspec.structs.replace(
                asking.grant, segment="other", epoch="other", endpoints=ends
            )
            with pytest.raises((BadTransfer, PeerLost)):
                await asking.reads(odd)
    await asking.works()


async def test_a_line_to_an_address_that_is_none_is_no_line(tmp_path: Path) -> None:
    async with make_pair("tcp4", tmp_path) as pair:
        asking = Asking(pair)
        for host in ("", ":", "[", "host", "::1", *(f"{host}:1" for host in HOSTS)):
            odd = msgspec.structs.replace(asking.grant, endpoints=[Endpoint("tcp", host)])
            with pytest.raises(PeerLost, match="no line"):
                await asking.engine.lines.open(odd, asking.grant.key)
        await asking.works()


async def test_an_engine_is_used_on_its_own_thread_only(asking: Asking) -> None:
    with pytest.raises(BadTransfer):
        await asyncio.to_thread(asking.engine.submit, [asking.request()])
    await asking.works()


async def test_a_path_that_breaks_our_own_promises_ends_the_job_all_the_same(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(job: object) -> None:
        raise ZeroDivisionError

    path = asking.remote.paths[0]
    with monkeypatch.context() as patched:
        patched.setattr(type(path), "start", lambda self, job: start(job))
        with pytest.raises(BugError, match="ZeroDivisionError"):
            await asking.engine.submit([asking.request()])
    assert "failed over" in caplog.text
    await asking.works()


async def test_a_way_that_breaks_our_own_promises_ends_the_job_it_was_given_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_pair("nics", tmp_path) as made:
        asking = Asking(made)
        await asking.works()
        odd = asking.engine.open(asking.there.grant("rw"))
        good = TcpPath.start

        def start(self: TcpPath, job: Job) -> None:
            if job.remote is odd:
                raise ZeroDivisionError
            good(self, job)

        monkeypatch.setattr(TcpPath, "start", start)
        batches = [
            asking.engine.submit([asking.request(remote=remote, length=3 << 20)], deadline_s=3.0)
            for remote in (asking.remote, odd, asking.remote)
        ]
        with pytest.raises(BugError, match="ZeroDivisionError"):
            await batches[1]
        await batches[0]
        await batches[2]
        await asking.works()


@pytest.mark.parametrize("wiring", ["tcp4", "nics"])
@pytest.mark.parametrize("length", [10, 3 << 20])
@pytest.mark.parametrize("step", ["_load", "_expect"])
async def test_a_bug_on_a_stream_ends_what_it_hit_and_nothing_else(
    wiring: str, length: int, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_pair(wiring, tmp_path) as made:
        asking = Asking(made)
        await asking.works()
        good = getattr(Stream, step)
        odd = asking.engine.open(asking.there.grant("rw"))

        def hits(self: Stream, job: Any, *more: Any) -> None:
            if job.remote is odd:
                raise ZeroDivisionError
            good(self, job, *more)

        monkeypatch.setattr(Stream, step, hits)
        requests = [asking.request(), asking.request(remote=odd, length=length), asking.request()]
        batches = [asking.engine.submit([each]) for each in requests]
        with pytest.raises(BugError, match="ZeroDivisionError"):
            await batches[1]
        await batches[0]
        await batches[2]
        await asking.works()


async def test_a_host_that_can_have_no_thread_more_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_pair("tcp4", tmp_path) as pair:
        asking = Asking(pair)

        def start(self: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr("threading.Thread.start", start)
            for _ in range(STREAMS_PER_PEER + 1):
                with pytest.raises(BugError, match="new thread"):
                    await asking.engine.submit([asking.request(length=3 << 20)], deadline_s=3.0)
        await asking.works()
