"""KV blocks of one node at a time, layer by layer, for programs without an event loop.

with store.blocks.open_put("store-1", tenant, items) as put:
    put.write_chunks(0, 4, sources)  # four layers, as soon as they are made
    put.write_chunks(4, 8, sources)
    print(put.finish(checksums))
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from moonpool.client.base import Place
from moonpool.client.blocks import LEASE_S, LOADING_WAIT_S, PUT_TTL_S, BlockStore
from moonpool.client.get_session import GetSession, SpanRead
from moonpool.client.own_loop import OwnLoop
from moonpool.client.put_session import Piece, PutSession
from moonpool.kv import BlockKey
from moonpool.messages import TenantId
from moonpool.messages.store import GetSlot, PutItem, PutSlot, StatsReply
from moonpool.transfer.base import Priority


class SyncPutSession:
    """`PutSession`, with calls that wait."""

    def __init__(self, session: PutSession, loop: OwnLoop) -> None:
        self._session = session
        self._loop = loop

    @property
    def node(self) -> str:
        return self._session.node

    @property
    def keys(self) -> list[BlockKey]:
        return self._session.keys

    @property
    def slots(self) -> list[PutSlot]:
        return self._session.slots

    @property
    def wanted(self) -> list[int]:
        return self._session.wanted

    def write_chunks(
        self,
        first: int,
        last: int,
        sources: Mapping[int, Place],
        priority: Priority = Priority.BACKGROUND,
    ) -> None:
        self._loop.do(self._session.write_chunks(first, last, sources, priority))

    def write_pieces(
        self, pieces: Sequence[Piece], priority: Priority = Priority.BACKGROUND
    ) -> None:
        self._loop.do(self._session.write_pieces(pieces, priority))

    def finish(
        self,
        checksums: Mapping[int, bytes],
        takes: Mapping[int, BlockKey] | None = None,
        *,
        durable: bool = False,
    ) -> list[str]:
        return self._loop.do(self._session.finish(checksums, takes, durable=durable))

    def abandon(self) -> None:
        self._loop.do(self._session.abandon())


class SyncGetSession:
    """`GetSession`, with calls that wait."""

    def __init__(self, session: GetSession, loop: OwnLoop) -> None:
        self._session = session
        self._loop = loop

    @property
    def node(self) -> str:
        return self._session.node

    @property
    def keys(self) -> list[BlockKey]:
        return self._session.keys

    @property
    def slots(self) -> list[GetSlot]:
        return self._session.slots

    @property
    def hits(self) -> list[int]:
        return self._session.hits

    @property
    def corrupt(self) -> set[int]:
        return self._session.corrupt

    def read_chunks(
        self,
        first: int,
        last: int,
        targets: Mapping[int, Place],
        priority: Priority = Priority.FOREGROUND,
    ) -> dict[int, list[int]]:
        return self._loop.do(self._session.read_chunks(first, last, targets, priority))

    def read_spans(
        self, reads: Sequence[SpanRead], priority: Priority = Priority.FOREGROUND
    ) -> set[int]:
        return self._loop.do(self._session.read_spans(reads, priority))

    def read_all(
        self, targets: Mapping[int, Place], priority: Priority = Priority.FOREGROUND
    ) -> set[int]:
        return self._loop.do(self._session.read_all(targets, priority))

    def renew(self, lease_s: float = LEASE_S) -> None:
        self._loop.do(self._session.renew(lease_s))

    def finish(self) -> bool:
        return self._loop.do(self._session.finish())

    def release(self) -> bool:
        return self._loop.do(self._session.release())


class SyncBlockStore:
    """`BlockStore`, with calls that wait. Sessions are contexts: a put that was not finished is
    abandoned at the end, a lease given back."""

    def __init__(self, blocks: BlockStore, loop: OwnLoop) -> None:
        self._blocks = blocks
        self._loop = loop

    @contextmanager
    def open_put(
        self,
        node: str,
        tenant: TenantId,
        items: Sequence[PutItem],
        *,
        ttl_s: float = PUT_TTL_S,
        run_blocks: int = 0,
        replicas: int = 1,
    ) -> Iterator[SyncPutSession]:
        opening = self._blocks.open_put(
            node, tenant, items, ttl_s=ttl_s, run_blocks=run_blocks, replicas=replicas
        )
        with self._loop.inside(self._loop.do(opening)) as session:
            yield SyncPutSession(session, self._loop)

    @contextmanager
    def open_get(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        *,
        lease_s: float = LEASE_S,
        wait_s: float = LOADING_WAIT_S,
        inline_bytes: int = 0,
        tail_bytes: int = 0,
        run_blocks: int = 0,
    ) -> Iterator[SyncGetSession]:
        opening = self._blocks.open_get(
            node,
            tenant,
            keys,
            lease_s=lease_s,
            wait_s=wait_s,
            inline_bytes=inline_bytes,
            tail_bytes=tail_bytes,
            run_blocks=run_blocks,
        )
        with self._loop.inside(self._loop.do(opening)) as session:
            yield SyncGetSession(session, self._loop)

    def put_blocks(
        self,
        node: str,
        tenant: TenantId,
        items: Sequence[tuple[BlockKey, Place]],
        size_bytes: int,
        chunk_bytes: int,
        checksums: Sequence[bytes] | None = None,
        *,
        priority: Priority = Priority.BACKGROUND,
    ) -> list[str]:
        return self._loop.do(
            self._blocks.put_blocks(
                node, tenant, items, size_bytes, chunk_bytes, checksums, priority=priority
            )
        )

    def exist(self, node: str, tenant: TenantId, keys: Sequence[BlockKey]) -> list[bool]:
        return self._loop.do(self._blocks.exist(node, tenant, keys))

    def remove(self, node: str, tenant: TenantId, keys: Sequence[BlockKey]) -> list[str]:
        return self._loop.do(self._blocks.remove(node, tenant, keys))

    def pin(
        self,
        node: str,
        tenant: TenantId,
        keys: Sequence[BlockKey],
        kind: str = "soft",
        *,
        ttl_s: float = 1800.0,
    ) -> list[str]:
        return self._loop.do(self._blocks.pin(node, tenant, keys, kind, ttl_s=ttl_s))

    def stats(self, node: str) -> StatsReply:
        return self._loop.do(self._blocks.stats(node))
