"""Number -> number, by open addressing: a dictionary of integers at a fifth of the memory."""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.store.packed.sorting import order_by_top

BITS_MIN = 8
SLACK = 64  # cells beyond the last home: runs do not wrap around
FILL_MAX = 0.7
_FACTOR = 0x9E37_79B9_7F4A_7C15
_MASK64 = (1 << 64) - 1
_EMPTY, _DELETED = _MASK64, _MASK64 - 1  # no key is as large


class Numbers:
    """Keys below 2**64 - 2, values below 2**32. Growing takes a tenth of a second per million, in
    which other threads run."""

    def __init__(self) -> None:
        self._count = 0
        self._renew(BITS_MIN)

    def __len__(self) -> int:
        return self._count

    def get(self, key: int) -> int:
        """-1 when it is not there."""
        cell = self._cell(key)
        value: int = self._values[cell] if cell >= 0 else -1
        return value

    def set(self, key: int, value: int) -> None:
        cell = self._cell(key)
        if cell >= 0:
            self._values[cell] = value
            return
        if self._used >= FILL_MAX * (1 << self._bits):
            self._grow()
        while (cell := self._free_cell(key)) < 0:
            self._grow(self._bits + 1)
        self._used += self._keys[cell] == _EMPTY
        self._keys[cell], self._values[cell] = key, value
        self._count += 1

    def pop(self, key: int) -> int:
        """-1 when it is not there."""
        cell = self._cell(key)
        if cell < 0:
            return -1
        self._keys[cell] = _DELETED
        self._count -= 1
        value: int = self._values[cell]
        return value

    def build(
        self, keys: "npt.NDArray[Any]", values: "npt.NDArray[Any]", bits_min: int = BITS_MIN
    ) -> None:
        """In place of all that is there. Keys differ."""
        bits = max(bits_min, int(len(keys) / FILL_MAX).bit_length())
        while not self._try_build(keys, values, bits):
            bits += 1

    def _try_build(self, keys: "npt.NDArray[Any]", values: "npt.NDArray[Any]", bits: int) -> bool:
        """Each goes to its home, or behind the one before it. False when one would go too far."""
        self._renew(bits)
        hashed = np.multiply(keys.astype(np.uint64), np.uint64(_FACTOR), dtype=np.uint64)
        homes = hashed >> np.uint64(64 - bits)
        order = order_by_top(hashed)
        steps = np.arange(len(keys), dtype=np.int64)
        cells = np.maximum.accumulate(homes[order].astype(np.int64) - steps) + steps
        if len(keys) and cells[-1] >= len(self._keys) - 1:
            return False
        np.asarray(self._keys)[cells] = keys[order]
        np.asarray(self._values)[cells] = values[order]
        self._used = self._count = len(keys)
        return True

    def bytes_used(self) -> int:
        """Of memory."""
        return int(self._keys.nbytes + self._values.nbytes)

    def _renew(self, bits: int) -> None:
        self._bits = bits
        cells = (1 << bits) + SLACK
        self._keys: Any = np.full(cells, _EMPTY, np.uint64).data
        self._values: Any = np.zeros(cells, np.uint32).data
        self._used = 0  # cells that are not empty

    def _grow(self, bits_min: int = BITS_MIN) -> None:
        """Deleted ones are gone; then there is room for half as many more at least."""
        keys, values = np.asarray(self._keys), np.asarray(self._values)
        live = keys < np.uint64(_DELETED)
        self.build(keys[live], values[live], max(bits_min, int(2 * self._count).bit_length()))

    def _home(self, key: int) -> int:
        return (key * _FACTOR & _MASK64) >> (64 - self._bits)

    def _cell(self, key: int) -> int:
        keys, cell = self._keys, self._home(key)
        while (there := keys[cell]) != _EMPTY:
            if there == key:
                return cell
            cell += 1
        return -1

    def _free_cell(self, key: int) -> int:
        """-1 when the run reaches the end: the last cell stays empty, and ends every search."""
        keys, cell = self._keys, self._home(key)
        while keys[cell] < _DELETED:
            cell += 1
        return cell if cell < len(keys) - 1 else -1
