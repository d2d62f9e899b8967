"""What changed since it was last told: the net effect per key, for the index elsewhere."""

from moonpool.kv import BlockKey


class Changes:
    """A key is either newly stored or removed; the last word counts, so order does not matter."""

    def __init__(self) -> None:
        self._is_stored: dict[BlockKey, bool] = {}
        self._relist = False

    def stored(self, key: BlockKey) -> None:
        self._is_stored[key] = True

    def removed(self, key: BlockKey) -> None:
        self._is_stored[key] = False

    def relist(self) -> None:
        """Too much to be told: everybody is to ask for all keys again."""
        self._is_stored.clear()
        self._relist = True

    def take_relist(self) -> bool:
        """Whether `relist` was called since the last time; before `take`."""
        relist, self._relist = self._relist, False
        return relist

    def take(self) -> tuple[list[BlockKey], list[BlockKey]]:
        """(stored, removed) since the last call."""
        is_stored, self._is_stored = self._is_stored, {}
        stored = [key for key, here in is_stored.items() if here]
        removed = [key for key, here in is_stored.items() if not here]
        return stored, removed

    def __len__(self) -> int:
        return len(self._is_stored) + self._relist
