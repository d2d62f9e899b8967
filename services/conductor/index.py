"""The index: block key -> the set of places that hold it, as one shared integer of bits.

Per block it costs a 60-bit integer (the head of the key) and a dict entry: about 75 bytes. Sixty
bits of a cryptographic digest collide once in 10^10 look-ups at 10^8 blocks, and a false hit is a
fetch that misses and is recomputed: owners compare whole keys, the index is only a hint.
Whole lives of owners vanish by retiring bits, which is free; `sweep` cleans up in small steps.
"""

from collections import deque
from itertools import groupby

import numpy as np

from moonpool.kv import KEY_BYTES
from moonpool.messages.ids import OwnerId
from services.conductor.match import Match, Segment
from services.conductor.places import Place, Places, bits_of

_WORDS = KEY_BYTES // 8  # machine words per key; the first names it here
_SHIFT = 4  # 64 -> 60 bits: integers of that size take 32 bytes instead of 48
_MASKS_MAX = 1 << 16  # shared masks remembered; beyond it the memory of them starts afresh
_SEGMENTS_MAX = 48  # steps of a match; beyond them neighbours merge into what they share
_CHECK_KEYS_MAX = 100_000  # a larger index is not recounted by `check`


class BlockIndex:
    """Keys to places. Not thread-safe."""

    def __init__(self) -> None:
        self.places = Places()
        self._table: dict[int, int] = {}
        self._masks: dict[int, int] = {}  # mask -> the one object that stands for it
        self._sweep_keys: deque[int] = deque()
        self._sweep_mask = 0

    # -- what owners say

    def store(self, place: Place, packed: bytes) -> int:
        """`place` holds these keys. Returns how many it did not hold before."""
        keys = list(dict.fromkeys(_heads(packed)))
        bit = place.bit
        olds = list(map(self._table.get, keys))
        # At most a handful of distinct sets per batch: translate sets, not keys.
        news: dict[int | None, int] = {}
        held = False
        for old in set(olds):
            news[old] = self._shared((old or 0) | bit)
            held = held or bool((old or 0) & bit)
        if len(news) == 1 and not held:
            self._table.update(dict.fromkeys(keys, next(iter(news.values()))))
        else:
            self._table.update(zip(keys, map(news.__getitem__, olds), strict=True))
        added = len(keys)
        if held:
            added -= sum(1 for old in olds if old is not None and old & bit)
        place.blocks += added
        return added

    def remove(self, place: Place, packed: bytes) -> int:
        """`place` lost these keys. Returns how many it held."""
        table, bit, removed = self._table, place.bit, 0
        for key in _heads(packed):
            old = table.get(key, 0)
            if old & bit:
                removed += 1
                if old == bit:
                    del table[key]
                else:
                    table[key] = self._shared(old & ~bit)
        place.blocks -= removed
        return removed

    def retire(self, place: Place) -> None:
        """Everything `place` held is gone, as of now; the memory comes back by `sweep`."""
        self.places.retire(place)

    def sweep(self, keys_max: int) -> bool:
        """Looks at up to `keys_max` keys for retired bits. True when nothing is left to do."""
        if not self._sweep_mask:
            if not self.places.retired:
                return True
            self._sweep_mask = self.places.retired
            self._sweep_keys.extend(self._table)
        table, mask, keys = self._table, self._sweep_mask, self._sweep_keys
        for _ in range(min(keys_max, len(keys))):
            key = keys.popleft()
            old = table.get(key, 0)
            if old & mask:
                if old & ~mask:
                    table[key] = self._shared(old & ~mask)
                else:
                    del table[key]
        if keys:
            return False
        self._sweep_mask = 0
        self.places.swept(mask)
        return self.places.retired == 0

    # -- what the conductor asks

    def match(self, packed: bytes, usable: int) -> Match:
        """Who among `usable` places holds the leading blocks. Looks up O(log n) of n keys for
        each step it finds, so a hole shorter than a quarter of the prompt, or than 32 blocks, can
        escape it: `confirm` finds those where a choice rests on them."""
        blocks = len(packed) // KEY_BYTES
        if not blocks:
            return Match(0)
        words, get = memoryview(packed).cast("Q"), self._table.get
        stride = max(32, blocks >> 2)  # equal ends farther apart are looked between
        tail = blocks - 1
        first = get(words[0] >> _SHIFT, 0) & usable
        last = get(words[tail * _WORDS] >> _SHIFT, 0) & usable
        done: list[Segment] = []
        start = held = 0  # the open segment begins at `start`, held by `held`
        # Spans (low, high, mask at low, mask at high) of blocks `[low, high)`, leftmost on top.
        todo = [(tail, blocks, last, last)] if tail else []
        low, high, here, there = 0, max(tail, 1), first, last
        while here:
            width = high - low
            if width > 1 and (here != there or width > stride):
                if len(done) < _SEGMENTS_MAX or not here & there:
                    middle = (low + high) >> 1
                    mask = get(words[middle * _WORDS] >> _SHIFT, 0) & usable
                    todo.append((middle, high, mask, there))
                    high, there = middle, mask
                    continue
                here &= there
            if here != held:
                if held:
                    done.append(Segment(start, low, held))
                start, held = low, here
            if not todo:
                low = high
                break
            low, high, here, there = todo.pop()
        if held:
            done.append(Segment(start, low, held))
        return Match(blocks, done)

    def walk(self, packed: bytes, usable: int) -> Match:
        """As `match`, looking at every block: no hole escapes it."""
        get = self._table.get
        segments: list[Segment] = []
        at = 0
        for mask, run in groupby(get(key, 0) & usable for key in _heads(packed)):
            if not mask:
                break
            end = at + sum(1 for _ in run)
            segments.append(Segment(at, end, mask))
            at = end
        return Match(len(packed) // KEY_BYTES, segments, exact=True)

    def confirm(self, packed: bytes, bit: int, start: int, end: int) -> bool:
        """Whether the place of `bit` holds every one of the blocks `[start, end)`."""
        keys = _heads(packed[start * KEY_BYTES : end * KEY_BYTES])
        return all(mask and mask & bit for mask in set(map(self._table.get, keys)))

    def where(self, key: bytes, usable: int) -> list[tuple[OwnerId, str]]:
        """Owner and tier of everybody among `usable` who holds one key."""
        mask = self._table.get(_heads(key)[0], 0) & usable
        return [(place.owner, place.tier) for place in self.places.of(mask)]

    def masks(self, packed: bytes, usable: int) -> list[int]:
        """Per key, the bits of those among `usable` who hold it."""
        get = self._table.get
        return [get(key, 0) & usable for key in _heads(packed)]

    def blocks_by_tier(self) -> dict[str, int]:
        """Replicas per tier, over living places."""
        counts: dict[str, int] = {}
        for place in self.places:
            counts[place.tier] = counts.get(place.tier, 0) + place.blocks
        return counts

    def __len__(self) -> int:
        """Keys known, those included that only await the sweep."""
        return len(self._table)

    def stats(self) -> dict[str, int]:
        return {
            "keys": len(self._table),
            "places": len(self.places),
            "masks": len(self._masks),
            "retired_bits": self.places.retired.bit_count(),
            "sweep_keys_left": len(self._sweep_keys),
        }

    def check(self) -> None:
        """Bits are known and counts are true (recounted while the index is small)."""
        self.places.check()
        assert self._sweep_mask & ~self.places.retired == 0, "only retired bits are swept"
        if len(self._table) > _CHECK_KEYS_MAX:
            return
        counts: dict[int, int] = {}
        for mask in self._table.values():
            assert mask, "no key without a place"
            for bit in bits_of(mask):
                counts[bit] = counts.get(bit, 0) + 1
        for place in self.places:
            assert counts.pop(place.bit, 0) == place.blocks, (
                f"{place.owner} {place.tier} miscounted"
            )
        assert all(bit & self.places.retired for bit in counts), "no key names an unknown place"

    # -- inside

    def _shared(self, mask: int) -> int:
        """The one integer object for this set, so that a million keys share it."""
        known = self._masks.get(mask)
        if known is not None:
            return known
        if len(self._masks) >= _MASKS_MAX:
            self._masks.clear()
        self._masks[mask] = mask
        return mask


def _heads(packed: bytes) -> list[int]:
    """The first 60 bits of each key, as the index names it."""
    words = np.frombuffer(packed, dtype=np.uint64)[::_WORDS]
    heads: list[int] = (words >> np.uint64(_SHIFT)).tolist()
    return heads
