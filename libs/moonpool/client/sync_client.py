"""The store for programs without an event loop: plain scripts, threads, notebooks.

with SyncStoreClient.connect("nats://127.0.0.1:4222") as store:
    store.put("greeting", b"hello")
    print(store.get("greeting"))
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from moonpool.client.base import SOFT_PIN_S, Copies, GetResult, Value
from moonpool.client.errors import DeadlineOver
from moonpool.client.store_client import StoreClient
from moonpool.messages import MoonpoolError
from moonpool.messages.store import ListedName, StatsReply
from moonpool.transfer.base import Region

A = TypeVar("A")

DEADLINE_S = 60.0
END_S = 10.0


class SyncStoreClient:
    """`StoreClient`, with a loop in a thread of its own. Any number of threads may use it at once.
    Each call ends within the deadline: what takes longer is cancelled and raises DeadlineOver."""

    def __init__(
        self, store: StoreClient, loop: asyncio.AbstractEventLoop, deadline_s: float
    ) -> None:
        self._store = store
        self._loop = loop
        self._deadline_s = deadline_s

    @classmethod
    @contextmanager
    def connect(
        cls,
        nats_url: str = "nats://127.0.0.1:4222",
        *,
        deadline_s: float = DEADLINE_S,
        **given: Any,
    ) -> Iterator[Self]:
        """A client of the mesh while inside. `given`: as for `StoreClient.connect`."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="moonpool store", daemon=True)
        thread.start()
        connecting = StoreClient.connect(nats_url, **given)
        try:
            store = _run(loop, connecting.__aenter__(), deadline_s)
            try:
                yield cls(store, loop, deadline_s)
            finally:
                _run(loop, connecting.__aexit__(None, None, None), deadline_s)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_S)
            if not thread.is_alive():
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()

    def nodes(self) -> list[str]:
        return self._store.nodes()

    def put(self, name: str, value: Value, *, replace: bool = False, replicas: int = 1) -> bool:
        return self._do(self._store.put(name, value, replace=replace, replicas=replicas))

    def put_many(
        self, values: Mapping[str, Value], *, replace: bool = False, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]:
        return self._do(self._store.put_many(values, replace=replace, replicas=replicas))

    def upsert(self, name: str, value: Value, *, replicas: int = 1) -> None:
        self._do(self._store.upsert(name, value, replicas=replicas))

    def put_from(
        self, name: str, region: Region, offset: int, size_bytes: int, *, replace: bool = False
    ) -> bool:
        return self._do(self._store.put_from(name, region, offset, size_bytes, replace=replace))

    def get(self, name: str) -> bytes | None:
        return self._do(self._store.get(name))

    def get_many(self, names: Iterable[str]) -> dict[str, GetResult]:
        return self._do(self._store.get_many(names))

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        return self._do(self._store.get_range(name, start, length))

    def get_into(
        self, name: str, region: Region, offset: int = 0, room_bytes: int | None = None
    ) -> int | None:
        return self._do(self._store.get_into(name, region, offset, room_bytes))

    def register(self, buffer: object) -> Region:
        async def register() -> Region:
            return self._store.register(buffer)

        return self._do(register())

    def allocate(self, size_bytes: int) -> Region:
        async def allocate() -> Region:
            return self._store.allocate(size_bytes)

        return self._do(allocate())

    def unregister(self, region: Region) -> None:
        self._do(region.unregister())

    def exists(self, name: str) -> bool:
        return self._do(self._store.exists(name))

    def exist_many(self, names: Iterable[str]) -> dict[str, bool]:
        return self._do(self._store.exist_many(names))

    def size(self, name: str) -> int | None:
        return self._do(self._store.size(name))

    def size_many(self, names: Iterable[str]) -> dict[str, int | None]:
        return self._do(self._store.size_many(names))

    def remove(self, name: str) -> bool:
        return self._do(self._store.remove(name))

    def remove_many(self, names: Iterable[str]) -> dict[str, bool]:
        return self._do(self._store.remove_many(names))

    def remove_prefix(self, prefix: str) -> int:
        return self._do(self._store.remove_prefix(prefix))

    def pin(self, name: str, kind: str = "soft", *, ttl_s: float = SOFT_PIN_S) -> bool:
        return self._do(self._store.pin(name, kind, ttl_s=ttl_s))

    def unpin(self, name: str) -> bool:
        return self._do(self._store.unpin(name))

    def secure(self, name: str) -> bool:
        return self._do(self._store.secure(name))

    def list_names(self, prefix: str = "") -> list[ListedName]:
        async def collect() -> list[ListedName]:
            return [each async for each in self._store.list_names(prefix)]

        return self._do(collect())

    def count(self, prefix: str = "") -> int:
        return self._do(self._store.count(prefix))

    def wipe(self) -> int:
        return self._do(self._store.wipe())

    def replicas(self, name: str) -> Copies | None:
        return self._do(self._store.replicas(name))

    def add_replica(self, name: str, node: str) -> bool:
        return self._do(self._store.add_replica(name, node))

    def drop_replica(self, name: str, node: str) -> bool:
        return self._do(self._store.drop_replica(name, node))

    def move_replica(self, name: str, source: str, target: str) -> bool:
        return self._do(self._store.move_replica(name, source, target))

    def stats(self) -> dict[str, StatsReply]:
        return self._do(self._store.stats())

    def _do(self, work: Coroutine[Any, Any, A]) -> A:
        return _run(self._loop, work, self._deadline_s)


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, A], deadline_s: float) -> A:
    """Runs it on the other thread's loop. Raises DeadlineOver; a RuntimeError after the end."""
    if not loop.is_running():
        work.close()
        raise RuntimeError("this store client is closed")
    try:
        return asyncio.run_coroutine_threadsafe(_within(work, deadline_s), loop).result()
    except TimeoutError as error:
        raise DeadlineOver(f"not done within {deadline_s:g} s") from error


async def _within(work: Coroutine[Any, Any, A], deadline_s: float) -> A:
    async with asyncio.timeout(deadline_s):
        return await work
