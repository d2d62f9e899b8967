"""Where the checksums of one sealed frame lie while a stream sends or receives them."""

import numpy as np

from moonpool.transfer.checksums import SEAL_BYTES, seal_of


class Seals:
    """Two places: after the head, and at the end. Each is valid until it is used again."""

    def __init__(self) -> None:
        room = np.zeros(2 * SEAL_BYTES, np.uint8)
        self._bytes = room.data
        self.head_address = int(room.ctypes.data)
        self.address = self.head_address + SEAL_BYTES

    @property
    def head(self) -> bytes:
        return bytes(self._bytes[:SEAL_BYTES])

    @property
    def end(self) -> bytes:
        return bytes(self._bytes[SEAL_BYTES:])

    @property
    def head_bytes(self) -> memoryview:
        return self._bytes[:SEAL_BYTES]

    def put_head(self, head: bytes | memoryview, ranges: bytes | memoryview) -> int:
        """Seals the head of a frame; the address of the seal."""
        self._bytes[:SEAL_BYTES] = seal_of(head, ranges)
        return self.head_address

    def put(self, sealed: bytes) -> int:
        """At the end; its address."""
        self._bytes[SEAL_BYTES:] = sealed
        return self.address
