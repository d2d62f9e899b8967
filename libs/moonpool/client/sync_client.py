"""The store for programs without an event loop: plain scripts, threads, notebooks.

with SyncStoreClient.connect("nats://127.0.0.1:4222") as store:
    store.put("greeting", b"hello")
    print(store.get("greeting"))
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, TypeVar

from moonpool.client.base import SOFT_PIN_S, Copies, GetResult, Value
from moonpool.client.own_loop import OwnLoop
from moonpool.client.store_client import StoreClient
from moonpool.client.sync_blocks import SyncBlockStore
from moonpool.kv import BlockKey
from moonpool.messages import MoonpoolError, TenantId
from moonpool.messages.store import ListedName, StatsReply
from moonpool.transfer.base import Region

A = TypeVar("A")

DEADLINE_S = 60.0


class SyncStoreClient:
    """`StoreClient`, with a loop in a thread of its own. Any number of threads may use it at once.
    Each call ends within the deadline: what takes longer is cancelled and raises DeadlineOver."""

    def __init__(self, store: StoreClient, loop: OwnLoop) -> None:
        self.blocks = SyncBlockStore(store.blocks, loop)
        self._store = store
        self._loop = loop
        self._do = loop.do

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
        with (
            OwnLoop.run("moonpool store", deadline_s) as loop,
            loop.inside(StoreClient.connect(nats_url, **given)) as store,
        ):
            yield cls(store, loop)

    def wait_for_nodes(self, wait_s: float, count: int = 1) -> None:
        self._do(self._store.wait_for_nodes(wait_s, count))

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

    def upsert_many(
        self, values: Mapping[str, Value], *, replicas: int = 1
    ) -> dict[str, bool | MoonpoolError]:
        return self._do(self._store.upsert_many(values, replicas=replicas))

    def put_from(
        self,
        name: str,
        region: Region,
        offset: int,
        size_bytes: int,
        *,
        replace: bool = False,
        replicas: int = 1,
    ) -> bool:
        return self._do(
            self._store.put_from(
                name, region, offset, size_bytes, replace=replace, replicas=replicas
            )
        )

    def get(self, name: str) -> bytes | None:
        return self._do(self._store.get(name))

    def get_many(self, names: Iterable[str]) -> dict[str, GetResult]:
        return self._do(self._store.get_many(names))

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        return self._do(self._store.get_range(name, start, length))

    def get_range_many(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, GetResult]:
        return self._do(self._store.get_range_many(ranges))

    def view(self, name: str) -> AbstractContextManager[memoryview | None]:
        """As of `StoreClient`; a context of the calling thread."""
        return self._loop.inside(self._store.view(name))

    def get_into(
        self, name: str, region: Region, offset: int = 0, room_bytes: int | None = None
    ) -> int | None:
        return self._do(self._store.get_into(name, region, offset, room_bytes))

    def get_into_many(
        self, targets: Mapping[str, tuple[Region, int, int]]
    ) -> dict[str, int | MoonpoolError | None]:
        return self._do(self._store.get_into_many(targets))

    def register(self, buffer: object) -> Region:
        return self._there(lambda: self._store.register(buffer))

    def allocate(self, size_bytes: int) -> Region:
        return self._there(lambda: self._store.allocate(size_bytes))

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

    def pin_many(
        self, names: Iterable[str], kind: str = "soft", *, ttl_s: float = SOFT_PIN_S
    ) -> dict[str, bool]:
        return self._do(self._store.pin_many(names, kind, ttl_s=ttl_s))

    def unpin(self, name: str) -> bool:
        return self._do(self._store.unpin(name))

    def unpin_many(self, names: Iterable[str]) -> dict[str, bool]:
        return self._do(self._store.unpin_many(names))

    def secure(self, name: str) -> bool:
        return self._do(self._store.secure(name))

    def secure_many(self, names: Iterable[str]) -> dict[str, bool]:
        return self._do(self._store.secure_many(names))

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

    def own_stats(self) -> dict[str, int]:
        return self._there(self._store.own_stats)

    def key(self, name: str) -> BlockKey:
        return self._store.key(name)

    def home(self, name: str) -> str:
        return self._there(lambda: self._store.home(name))

    @property
    def tenant(self) -> TenantId:
        return self._store.tenant

    def _there(self, call: Callable[[], A]) -> A:
        """A plain call, on the loop's thread."""

        async def run() -> A:
            return call()

        return self._do(run())
