"""Time behind one seam, so that the same code serves on real time and simulates on virtual time."""

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""

    def unix(self) -> float:
        """Wall-clock seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Returns no earlier than `seconds` from now. Cancellable; nothing is held."""
