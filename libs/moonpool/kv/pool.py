"""The paged pool: which block of device memory is whose, and which may be reused.

A block is in exactly one of three states:

    free    nobody refers to it and it has no key      (on the free list)
    cached  nobody refers to it but it has a key       (in the eviction order)
    used    refs > 0, with a key (shared prefix) or without (being filled)

Bookkeeping only: the bytes are the engine's. One thread.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from moonpool.kv.hint import NO_HINT, BlockHint
from moonpool.kv.keys import BlockKey
from moonpool.kv.prefix import PrefixIndex


class EvictionOrder(Protocol):
    """What the pool asks of an eviction policy; `cache.EvictionPolicy[BlockKey]` is one."""

    def insert(
        self, key: BlockKey, size_bytes: int, now_s: float, hint: BlockHint = NO_HINT
    ) -> None: ...

    def touch(self, keys: Iterable[BlockKey], now_s: float, hint: BlockHint = NO_HINT) -> None: ...

    def victim(self, now_s: float) -> BlockKey | None: ...

    def remove(self, key: BlockKey) -> None: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: object) -> bool: ...


class BlockPool:
    """Reference-counted blocks with a prefix cache over those that are full."""

    def __init__(self, blocks_total: int, block_bytes: int, order: EvictionOrder) -> None:
        if blocks_total < 1:
            raise ValueError(f"a pool needs at least one block, not {blocks_total}")
        self.blocks_total = blocks_total
        self._block_bytes = block_bytes
        self._order = order
        self._free = list(range(blocks_total - 1, -1, -1))
        self._refs = [0] * blocks_total
        self._index = PrefixIndex()
        self._changes: list[tuple[BlockKey, bool]] = []
        self.evictions = 0

    @property
    def blocks_free(self) -> int:
        """Blocks that `allocate` can hand out right now, evicting if it must."""
        return len(self._free) + len(self._order)

    @property
    def blocks_evictable(self) -> int:
        """Blocks kept only for reuse: with a key, but in nobody's use."""
        return len(self._order)

    @property
    def blocks_cached(self) -> int:
        """Blocks with a key, in use or not."""
        return len(self._index)

    def keys(self) -> list[BlockKey]:
        """Keys of all cached blocks, in use or not."""
        return list(self._index.keys())

    def match(self, keys: Sequence[BlockKey]) -> list[int]:
        """Blocks of the longest leading run of `keys` held here. Takes no reference."""
        return self._index.match(keys)

    def find(self, key: BlockKey) -> int | None:
        """The block of one key."""
        return self._index.block_of(key)

    def holds(self, key: BlockKey) -> bool:
        return self._index.block_of(key) is not None

    def allocate(self, count: int, now_s: float) -> list[int] | None:
        """`count` blocks with one reference each, or None (and no change) without room."""
        if count > self.blocks_free:
            return None
        blocks: list[int] = []
        for _ in range(count):
            if not self._free:
                self._evict_one(now_s)
            block = self._free.pop()
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def acquire(self, blocks: Sequence[int], now_s: float) -> None:
        """One more reference to each; what was cached is no longer evictable."""
        for block in blocks:
            if self._refs[block] == 0:
                key = self._index.key_of(block)
                assert key is not None, f"block {block} is free: nothing to acquire"
                self._order.remove(key)
            self._refs[block] += 1

    def release(self, blocks: Sequence[int], now_s: float, hint: BlockHint = NO_HINT) -> None:
        """One reference less to each. Given head first; entered in the eviction order tail first,
        so that a chain loses its end before its beginning. `hint` tells whoever used them."""
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} released once too often"
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            key = self._index.key_of(block)
            if key is None:
                self._free.append(block)
            else:
                self._order.insert(key, self._block_bytes, now_s, hint)

    def publish(self, key: BlockKey, block: int) -> bool:
        """A full block in use becomes findable. False when the key is held already elsewhere."""
        assert self._refs[block] > 0, f"block {block} must be in use while it is published"
        if not self._index.add(key, block):
            return False
        self._changes.append((key, True))
        return True

    def forget(self, key: BlockKey) -> None:
        """Makes a block unfindable (bad bytes); it is freed when its last user releases it."""
        block = self._index.block_of(key)
        if block is None:
            return
        self._index.remove(block)
        self._changes.append((key, False))
        if self._refs[block] == 0:
            self._order.remove(key)
            self._free.append(block)

    def take_changes(self) -> list[tuple[BlockKey, bool]]:
        """What became findable (True) or vanished (False) since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _evict_one(self, now_s: float) -> None:
        key = self._order.victim(now_s)
        assert key is not None, "blocks_free promised a block that the eviction order lacks"
        self._order.remove(key)
        block = self._index.block_of(key)
        assert block is not None
        self._index.remove(block)
        self._changes.append((key, False))
        self._free.append(block)
        self.evictions += 1

    def check(self) -> None:
        """Asserts that every block is in exactly one state."""
        self._index.check()
        used = sum(1 for refs in self._refs if refs)
        assert min(self._refs) >= 0
        assert len(self._free) + len(self._order) + used == self.blocks_total
        assert len(set(self._free)) == len(self._free)
        for block in self._free:
            assert self._refs[block] == 0
            assert self._index.key_of(block) is None
        for key in self.keys():
            cached = self._index.block_of(key)
            assert cached is not None
            assert (key in self._order) == (self._refs[cached] == 0)
