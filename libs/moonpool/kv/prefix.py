"""The prefix index of one device pool: block key -> block number."""

from collections.abc import Iterator, Sequence

from moonpool.kv.keys import BlockKey


class PrefixIndex:
    """Finds how much of a prompt a pool already holds. One block number per key and back."""

    def __init__(self) -> None:
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}

    def match(self, keys: Sequence[BlockKey]) -> list[int]:
        """Block numbers of the longest leading run of `keys` that is held."""
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def block_of(self, key: BlockKey) -> int | None:
        return self._block_of.get(key)

    def key_of(self, block: int) -> BlockKey | None:
        return self._key_of.get(block)

    def add(self, key: BlockKey, block: int) -> bool:
        """False, and nothing changes, when the key or the block is already indexed."""
        if key in self._block_of or block in self._key_of:
            return False
        self._block_of[key] = block
        self._key_of[block] = key
        return True

    def remove(self, block: int) -> BlockKey:
        """Forgets a block and returns its key. KeyError when it was not indexed."""
        key = self._key_of.pop(block)
        del self._block_of[key]
        return key

    def keys(self) -> Iterator[BlockKey]:
        return iter(self._block_of)

    def __len__(self) -> int:
        return len(self._block_of)

    def check(self) -> None:
        assert len(self._block_of) == len(self._key_of)
        assert all(self._key_of[b] == k for k, b in self._block_of.items())
