"""Who waits while an adapter pins memory, and what becomes of it. The adapter is played; tests/rdma
has real ones."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from moonpool.transfer.errors import TransferBusy
from moonpool.transfer.transports.rdma_memory import MemoryCache

LENGTH = 4096
WAIT_S = 10.0


class VerbsError(Exception):
    pass


class Adapter:
    """Pins what it is given, when `may_pin` is set."""

    def __init__(self) -> None:
        self.may_pin = threading.Event()
        self.begun = threading.Semaphore(0)
        self.made: list[SimpleNamespace] = []
        self.refuses = False
        self.cache = MemoryCache(
            SimpleNamespace(  # type: ignore[arg-type]
                enums=SimpleNamespace(IBV_ACCESS_LOCAL_WRITE=1, IBV_ACCESS_MW_BIND=2),
                mr=SimpleNamespace(MR=self._pin),
                error=VerbsError,
            ),
            None,
        )

    def _pin(self, pd: object, length: int, access: int, address: int) -> SimpleNamespace:
        self.begun.release()
        assert self.may_pin.wait(WAIT_S)
        if self.refuses:
            raise VerbsError("no more")
        mr = SimpleNamespace(lkey=len(self.made), closed=False)
        mr.close = lambda: setattr(mr, "closed", True)
        self.made.append(mr)
        return mr


def region(number: int) -> Any:
    memory = SimpleNamespace(length=LENGTH)
    buffer = bytearray(LENGTH)
    address = id(buffer) & -4096  # never touched: pages are there already, or are left alone
    return SimpleNamespace(
        id=number, memory=memory, address=address, length=LENGTH, closing=False, keep=buffer
    )


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    monkeypatch.setattr("moonpool.transfer.transports.rdma_memory.wish", lambda *_: None)
    return Adapter()


@pytest.fixture
def on_thread(adapter: Adapter) -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit
        adapter.may_pin.set()


def test_nobody_waits_for_a_region_that_is_being_pinned_but_who_wants_it(
    adapter: Adapter, on_thread: Callable[..., Future[Any]]
) -> None:
    cache, big = adapter.cache, region(1)
    taking = [on_thread(cache.take, big), on_thread(cache.take, big)]
    assert adapter.begun.acquire(timeout=WAIT_S)
    assert on_thread(lambda: cache.bytes_pinned).result(WAIT_S) == 0
    on_thread(cache.forget, 2).result(WAIT_S)
    other = on_thread(cache.take, region(3))
    assert adapter.begun.acquire(timeout=WAIT_S)
    assert not any(each.done() for each in (*taking, other))
    adapter.may_pin.set()
    held = [each.result(WAIT_S) for each in taking]
    assert held[0] is held[1]
    assert held[0].uses == 2
    assert other.result(WAIT_S) is not held[0]
    assert len(adapter.made) == 2
    assert cache.bytes_pinned == 2 * LENGTH


def test_a_region_that_is_unregistered_while_it_is_pinned_goes_with_its_last_use(
    adapter: Adapter, on_thread: Callable[..., Future[Any]]
) -> None:
    cache, big = adapter.cache, region(1)
    taking = on_thread(cache.take, big)
    assert adapter.begun.acquire(timeout=WAIT_S)
    on_thread(cache.forget, 1).result(WAIT_S)
    adapter.may_pin.set()
    held = taking.result(WAIT_S)
    assert cache.bytes_pinned == 0
    assert not adapter.made[0].closed
    cache.release(held)
    assert adapter.made[0].closed


def test_what_is_prepared_stays_pinned_until_it_is_unregistered(adapter: Adapter) -> None:
    adapter.may_pin.set()
    cache, big = adapter.cache, region(1)
    cache.prepare(big)
    cache.prepare(big)
    assert cache.bytes_pinned == LENGTH
    cache.release(cache.take(big))
    assert [mr.closed for mr in adapter.made] == [False]
    cache.forget(1)
    assert [mr.closed for mr in adapter.made] == [True]
    assert cache.bytes_pinned == 0


def test_what_is_closing_is_not_kept(adapter: Adapter) -> None:
    adapter.may_pin.set()
    closing = region(1)
    closing.closing = True
    adapter.cache.prepare(closing)
    assert adapter.cache.bytes_pinned == 0
    assert adapter.made[0].closed


def test_an_adapter_that_refuses_is_asked_again_by_the_next(
    adapter: Adapter, on_thread: Callable[..., Future[Any]]
) -> None:
    adapter.refuses = True
    taking = [on_thread(adapter.cache.take, region(1)) for _ in range(3)]
    adapter.may_pin.set()
    for each in taking:
        with pytest.raises(TransferBusy):
            each.result(WAIT_S)
    adapter.refuses = False
    assert adapter.cache.take(region(1)).uses == 1


def test_an_adapter_is_closed_after_what_it_is_pinning(
    adapter: Adapter, on_thread: Callable[..., Future[Any]]
) -> None:
    preparing = on_thread(adapter.cache.prepare, region(1))
    assert adapter.begun.acquire(timeout=WAIT_S)
    closing = on_thread(adapter.cache.close)
    assert not closing.done()
    adapter.may_pin.set()
    preparing.result(WAIT_S)
    closing.result(WAIT_S)
    assert adapter.made[0].closed
