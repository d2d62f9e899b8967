"""Room that a lower tier makes for what is on its way there, beyond its headroom. Pure.

A place below is free only once whoever had it is erased. So room is asked for, and had a little
later: until then the bytes of all who wait are counted together, so that each finds its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moonpool.kv import BlockKey
from services.store.records import Record
from services.store.shelf import Shelf

WAITING_MAX = 4096  # at a time; more are told that there is no room
VICTIMS_MAX = 64  # to restore the headroom at once, so that not each wish waits for its own
WAITING_S = 2.0  # after its last question a wish is forgotten
EVICT_FACTOR = 4  # a wish costs at most so many times its bytes, or the minimum, ..
EVICT_MIN_BYTES = 16 << 20  # .. where a tier is in pieces


@dataclass(slots=True)
class Wish:
    size_bytes: int
    until_s: float
    budget_bytes: int  # what may still go for it


class Way:
    """Of one shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._wishes: dict[BlockKey, Wish] = {}  # the oldest question first
        self._bytes = 0

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._wishes

    def __len__(self) -> int:
        return len(self._wishes)

    def make(
        self,
        key: BlockKey,
        size_bytes: int,
        now_s: float,
        send_down: Callable[[Record], bool],
    ) -> bool:
        """After it was found that there is no place for it: whether one is being made, so that it
        is worth asking again when something has been erased. `send_down` makes a victim leave."""
        wish = self._ask(key, size_bytes, now_s)
        shelf = self._shelf
        if wish is None:
            return False
        for _ in range(VICTIMS_MAX):
            if shelf.excess_bytes() <= 0:
                break
            victim = shelf.next_victim(now_s)
            if victim is None or not send_down(victim):
                break
        while not (shelf.going_bytes and self._has_bytes()) and wish.budget_bytes > 0:
            victim = shelf.next_victim(now_s)
            if victim is None or not send_down(victim):
                break
            wish.budget_bytes -= victim.footprint
        return shelf.going_bytes > 0

    def end(self, key: BlockKey) -> None:
        """It has a place, or needs none any more."""
        wish = self._wishes.pop(key, None)
        if wish is not None:
            self._bytes -= wish.size_bytes

    def tick(self, now_s: float) -> None:
        """Forgets who does not ask any more."""
        while self._wishes and (oldest := next(iter(self._wishes.items())))[1].until_s <= now_s:
            self.end(oldest[0])

    def check(self) -> None:
        assert self._bytes == sum(wish.size_bytes for wish in self._wishes.values())

    def _ask(self, key: BlockKey, size_bytes: int, now_s: float) -> Wish | None:
        self.tick(now_s)
        wish = self._wishes.pop(key, None)
        if wish is None:
            if len(self._wishes) >= WAITING_MAX:
                return None
            wish = Wish(0, 0.0, max(EVICT_FACTOR * size_bytes, EVICT_MIN_BYTES))
        self._bytes += size_bytes - wish.size_bytes
        wish.size_bytes, wish.until_s = size_bytes, now_s + WAITING_S
        self._wishes[key] = wish
        return wish

    def _has_bytes(self) -> bool:
        """Whether there is enough for all once what is going has gone."""
        tier = self._shelf.tier
        return tier.bytes_total - tier.bytes_used + self._shelf.going_bytes >= self._bytes


class Ways:
    """Of all shelves of a node."""

    def __init__(self, shelves: Sequence[Shelf]) -> None:
        self._by_name = {shelf.name: Way(shelf) for shelf in shelves}

    def make(
        self,
        shelf: Shelf,
        key: BlockKey,
        size_bytes: int,
        now_s: float,
        send_down: Callable[[Record], bool],
    ) -> bool:
        """As `Way.make`; nothing goes for what may not be written there today."""
        way = self._by_name[shelf.name]
        is_coming = shelf.budget.has(size_bytes, now_s) and way.make(
            key, size_bytes, now_s, send_down
        )
        if not is_coming:
            way.end(key)
        return is_coming

    def end(self, key: BlockKey) -> None:
        """It has a place somewhere."""
        for way in self._by_name.values():
            way.end(key)

    def tick(self, now_s: float) -> None:
        for way in self._by_name.values():
            way.tick(now_s)

    def are_for(self, keys: Sequence[BlockKey]) -> bool:
        """Whether room is being made for one of these."""
        return any(key in way for way in self._by_name.values() for key in keys)

    def __len__(self) -> int:
        return sum(map(len, self._by_name.values()))

    def check(self) -> None:
        for way in self._by_name.values():
            way.check()
