"""The admission seam: is a block worth a write to a slower tier? Pure; time is handed in.

A disk wears with every write and most blocks are never read again, so a tier asks first. A filter
hears of every use, wherever the block lies then.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

from moonpool.cache.lifetable import LifeTable
from moonpool.cache.sketch import COUNT_MAX, FrequencySketch

REFIT_USES = 2000
KEYS_MAX = 1 << 18


class AdmissionFilter(Protocol):
    """Says for each block that is about to leave its tier whether the next one takes it."""

    def used(self, key: Hashable, now_s: float) -> None:
        """A use; the first one is its making."""

    def admits(self, key: Hashable, now_s: float) -> bool:
        """Whether it is worth a write now. Asking changes nothing."""


class AdmitAll:
    """No filter: every block is written."""

    def used(self, key: Hashable, now_s: float) -> None:
        """Uses do not count."""

    def admits(self, key: Hashable, now_s: float) -> bool:
        return True


class UsesAdmission:
    """Admits what was used `uses_min` times, and remembers that across a block's lives in its tier.

    Two generations of at most `keys_max` each: the younger fills, then it becomes the older one,
    and what was not used since is forgotten.
    """

    def __init__(self, uses_min: int, keys_max: int = KEYS_MAX // 2) -> None:
        self._uses_min = uses_min
        self._keys_max = keys_max
        self._young: dict[Hashable, int] = {}  # key -> uses
        self._old: dict[Hashable, int] = {}

    def used(self, key: Hashable, now_s: float) -> None:
        uses = self._young.get(key, self._old.get(key, 0))
        self._young[key] = uses + 1
        if len(self._young) >= self._keys_max:
            self._old, self._young = self._young, {}

    def admits(self, key: Hashable, now_s: float) -> bool:
        return self._young.get(key, self._old.get(key, 0)) >= self._uses_min

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class FrequencyAdmission:
    """Admits what was used `uses_min` times lately, by a sketch of a few bytes per key: it may
    take a block for one used more often, never for one used less."""

    def __init__(self, keys_max: int = KEYS_MAX, uses_min: int = 2) -> None:
        """ValueError when the sketch does not count so far."""
        if uses_min > COUNT_MAX:
            raise ValueError(f"a sketch counts up to {COUNT_MAX} uses, not {uses_min}")
        self._sketch = FrequencySketch(keys_max)
        self._uses_min = uses_min

    def used(self, key: Hashable, now_s: float) -> None:
        self._sketch.add(key)

    def admits(self, key: Hashable, now_s: float) -> bool:
        return self._sketch.count(key) >= self._uses_min


class ReuseAdmission:
    """Admits what is likely to be used again within `within_s`, by its uses so far and the time
    since the last: probabilities are learned on line (see `LifeTable`). Until there are any, it
    admits what was used twice."""

    def __init__(
        self, within_s: float = 1800.0, chance_min: float = 0.2, keys_max: int = KEYS_MAX
    ) -> None:
        self.table = LifeTable([0, 1, 2, 3])  # used 1, 2, 3, more times; each for itself
        self._within_s = within_s
        self._chance_min = chance_min
        self._keys_max = keys_max
        self._last: dict[Hashable, tuple[int, float]] = {}  # uses, when; oldest use first
        self._refit_in = REFIT_USES
        self._learned = False

    def used(self, key: Hashable, now_s: float) -> None:
        before = self._last.pop(key, None)
        uses = 1
        if before is not None:
            uses = before[0] + 1
            self.table.end(_class_of(before[0]), before[1], now_s)
        self._last[key] = (uses, now_s)
        self.table.begin(_class_of(uses), now_s)
        while len(self._last) > self._keys_max:
            del self._last[next(iter(self._last))]
        self._refit_in -= 1
        if self._refit_in <= 0:
            self._refit_in, self._learned = REFIT_USES, True
            self.table.refit(now_s)

    def admits(self, key: Hashable, now_s: float) -> bool:
        uses, used_s = self._last.get(key, (0, now_s))
        if not uses or not self._learned:
            return uses >= 2
        chance = self.table.chance(_class_of(uses), now_s - used_s, self._within_s)
        return chance >= self._chance_min


def _class_of(uses: int) -> int:
    return min(uses, 4) - 1


# Each takes the uses that make a block worth a write; not all heed it.
_FILTERS: dict[str, Callable[[int], AdmissionFilter]] = {
    "uses": UsesAdmission,
    "sketch": lambda uses_min: FrequencyAdmission(uses_min=uses_min),
    "reuse": lambda uses_min: ReuseAdmission(),
    "all": lambda uses_min: AdmitAll(),
}

ADMISSION_NAMES: tuple[str, ...] = tuple(_FILTERS)


def make_admission(name: str, uses_min: int = 2) -> AdmissionFilter:
    """A fresh filter. `uses_min`: for those that count. ValueError names the filters there are."""
    if name not in _FILTERS:
        raise ValueError(f"admission {name!r} is none of {', '.join(ADMISSION_NAMES)}")
    return _FILTERS[name](uses_min)
