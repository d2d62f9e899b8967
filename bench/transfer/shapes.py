"""What is moved: the sizes and batches, and which of them a ratio is promised for. Pure."""

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
BUFFER_BYTES = 128 * MIB  # on either side; far beyond any cache, and walked through in order


@dataclass(frozen=True, slots=True)
class Shape:
    """`count` ranges of `size` bytes in one call. Ranges of a batch lie a range apart, so that
    nobody can merge them into one."""

    size: int
    count: int = 1

    @property
    def payload(self) -> int:
        return self.size * self.count

    @property
    def stride(self) -> int:
        """Bytes from the start of one range to that of the next."""
        return self.size if self.count == 1 else 2 * self.size

    @property
    def places(self) -> int:
        """Different calls until the buffer begins again."""
        return BUFFER_BYTES // (self.stride * self.count)

    def offsets(self, place: int) -> list[int]:
        """Where the ranges of one call lie, here and there alike."""
        start = place * self.stride * self.count
        return [start + i * self.stride for i in range(self.count)]

    def __str__(self) -> str:
        shown = f"{self.size // MIB} MiB" if self.size >= MIB else f"{self.size // KIB} KiB"
        return shown if self.count == 1 else f"{self.count} x {shown}"


SINGLES = [Shape(size) for size in (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)]
BATCHES = [
    Shape(4 * KIB, 64),
    Shape(64 * KIB, 64),
    Shape(256 * KIB, 16),
    Shape(MIB, 16),
]
SMALL = Shape(4 * KIB)
ALL = [SMALL, *SINGLES, *BATCHES]


def singles_from(size: int) -> list[Shape]:
    return [shape for shape in SINGLES if shape.size >= size]


def all_from(size: int) -> list[Shape]:
    """Ranges of at least `size`, alone or in batches."""
    return [shape for shape in (*SINGLES, *BATCHES) if shape.size >= size]
