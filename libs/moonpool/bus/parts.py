"""Long requests travel in parts: how they are cut, and put together within bounds. Pure.

The requester first asks the subject for an address of its own (one small request, so that a missing
responder shows at once and a queue group picks one member), then sends the parts there in order;
the last one is the request that the handler answers.
"""

from dataclasses import dataclass, field

from moonpool.messages.errors import CapacityError, PeerError

PARTS_TOTAL_MAX_BYTES = 32 << 20  # of one request
HELD_MAX_BYTES = 128 << 20  # of all requests that one service puts together at a time
ASSEMBLIES_MAX = 64
IDLE_MAX_S = 10.0  # between two parts


class PartsLost(PeerError):
    """A part did not arrive in order or in time. Send the whole request again."""

    code = "parts_lost"


def cut(payload: bytes, part_bytes: int) -> list[memoryview]:
    """`payload` as views of at most `part_bytes` each, in order."""
    view = memoryview(payload)
    return [view[i : i + part_bytes] for i in range(0, len(view), part_bytes)]


@dataclass(slots=True)
class _Assembly:
    total_bytes: int
    deadline_s: float
    chunks: list[bytes] = field(default_factory=list)
    held_bytes: int = 0  # <= total_bytes


class Reassembly:
    """Requests of which some parts have come. Time is handed in."""

    def __init__(self) -> None:
        self._open: dict[str, _Assembly] = {}
        self._reserved_bytes = 0  # <= HELD_MAX_BYTES
        self.expired = 0

    def begin(self, token: str, total_bytes: int, now_s: float) -> None:
        """Room for a request of `total_bytes`. CapacityError when there is none."""
        self.expire(now_s)
        if not 0 < total_bytes <= PARTS_TOTAL_MAX_BYTES:
            raise CapacityError(f"a request of {total_bytes} bytes", code="payload_too_large")
        if len(self._open) >= ASSEMBLIES_MAX or self._reserved_bytes + total_bytes > HELD_MAX_BYTES:
            raise CapacityError("too many long requests at once", code="busy", elsewhere=True)
        self._reserved_bytes += total_bytes
        self._open[token] = _Assembly(total_bytes, now_s + IDLE_MAX_S)

    def add(self, token: str, index: int, chunk: bytes, now_s: float) -> bytes | None:
        """The whole payload once its last part is here. PartsLost, and the rest is forgotten."""
        self.expire(now_s)
        assembly = self._open.get(token)
        if assembly is None:
            raise PartsLost("this request expired or was never begun")
        late = index != len(assembly.chunks)
        if late or assembly.held_bytes + len(chunk) > assembly.total_bytes:
            self.drop(token)
            raise PartsLost(f"part {index} came where {len(assembly.chunks)} was expected")
        assembly.chunks.append(chunk)
        assembly.held_bytes += len(chunk)
        assembly.deadline_s = now_s + IDLE_MAX_S
        if assembly.held_bytes < assembly.total_bytes:
            return None
        self.drop(token)
        return b"".join(assembly.chunks)

    def drop(self, token: str) -> None:
        """Forgets a request. Idempotent."""
        assembly = self._open.pop(token, None)
        if assembly is not None:
            self._reserved_bytes -= assembly.total_bytes

    def expire(self, now_s: float) -> None:
        """Forgets requests whose next part is overdue."""
        for token in [t for t, a in self._open.items() if a.deadline_s < now_s]:
            self.drop(token)
            self.expired += 1

    def __contains__(self, token: object) -> bool:
        return token in self._open

    def __len__(self) -> int:
        return len(self._open)

    def stats(self) -> dict[str, int]:
        return {
            "assemblies": len(self._open),
            "reserved_bytes": self._reserved_bytes,
            "expired": self.expired,
        }
