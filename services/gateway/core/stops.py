"""Stop strings over text that arrives in pieces.

Text that could be the beginning of a stop string is held back until it is proven to be one
or not, so that a client never sees any part of a stop string.
"""

from collections.abc import Sequence


class StopMatcher:
    """Feeds on text, gives what is safe to show. `matched` is the stop string that ended it."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._held = ""  # shorter than the longest stop string
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown now. Nothing more after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        window = self._held + text
        cut = self._find(window)
        if cut >= 0:
            self._held = ""
            return window[:cut]
        keep = self._possible_start(window)
        self._held = window[keep:]
        return window[:keep]

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _find(self, window: str) -> int:
        """Where the earliest stop string starts, -1 when none; the longest wins a tie."""
        best = -1
        for stop in self._stops:
            at = window.find(stop)
            longer = self.matched is not None and len(stop) > len(self.matched)
            if at >= 0 and (best < 0 or at < best or (at == best and longer)):
                best, self.matched = at, stop
        return best

    def _possible_start(self, window: str) -> int:
        """Start of the longest tail of `window` that begins some stop string."""
        start = len(window)
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(window)), 0, -1):
                if window.endswith(stop[:size]):
                    start = min(start, len(window) - size)
                    break
        return start
