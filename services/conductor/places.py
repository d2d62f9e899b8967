"""Places: one bit for each (owner, tier) that holds blocks, so that "who has it" is one integer.

A bit belongs to one life of one owner. When that life ends its bit is retired: it stops counting
at once, and is handed out again only after a sweep wiped it from the index.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from moonpool.messages.ids import OwnerId


@dataclass(slots=True)
class Place:
    """One tier of one life of an owner."""

    owner: OwnerId
    tier: str
    bit: int  # exactly one bit set
    blocks: int = 0  # keys that carry the bit; >= 0


class Places:
    """Hands out bits and takes them back."""

    def __init__(self) -> None:
        self._by_bit: dict[int, Place] = {}
        self._free: list[int] = []  # swept bits, ready for use
        self._next = 1
        self.retired = 0  # bits whose place is gone but which keys may still carry

    def take(self, owner: OwnerId, tier: str) -> Place:
        """A new place with a bit that no key carries."""
        if self._free:
            bit = self._free.pop()
        else:
            bit = self._next
            self._next <<= 1
        place = Place(owner, tier, bit)
        self._by_bit[bit] = place
        return place

    def retire(self, place: Place) -> None:
        """Forget the place; its bit stays out of use until `swept`. KeyError when unknown."""
        del self._by_bit[place.bit]
        self.retired |= place.bit

    def swept(self, mask: int) -> None:
        """No key carries the bits of `mask` any more; they were retired before."""
        assert mask & ~self.retired == 0, "only retired bits can be swept"
        self.retired &= ~mask
        self._free.extend(bits_of(mask))

    def at(self, bit: int) -> Place:
        """The living place of `bit`. KeyError when there is none."""
        return self._by_bit[bit]

    def of(self, mask: int) -> list[Place]:
        """The living places among the bits of `mask`, lowest bit first."""
        by_bit = self._by_bit
        return [by_bit[bit] for bit in bits_of(mask) if bit in by_bit]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._by_bit.values())

    def __len__(self) -> int:
        return len(self._by_bit)

    def check(self) -> None:
        """Every bit below `_next` is in exactly one of: living, retired, free."""
        living = 0
        for bit, place in self._by_bit.items():
            assert place.bit == bit, "filed under its own bit"
            assert bit.bit_count() == 1, "one bit each"
            assert place.blocks >= 0, f"{place.owner} {place.tier} counts {place.blocks}"
            living |= bit
        free = 0
        for bit in self._free:
            assert not free & bit, "a bit is free once"
            free |= bit
        assert not living & self.retired, "a living bit is not retired"
        assert not free & (living | self.retired), "a free bit is neither"
        assert living | self.retired | free == self._next - 1, "no bit is lost"


def bits_of(mask: int) -> Iterator[int]:
    """Single bits of `mask`, lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
