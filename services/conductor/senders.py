"""Senders: how long each owner's outgoing link is busy with what plans just asked of it."""

_KEPT_MAX = 65536


class Senders:
    """Busy-until times per owner, from this conductor's own plans."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def add(self, owner: str, seconds: float, now_s: float) -> None:
        """A plan makes `owner` send for `seconds` more."""
        if len(self._until_s) >= _KEPT_MAX:
            self.expire(now_s)
        self._until_s[owner] = max(now_s, self._until_s.get(owner, now_s)) + seconds

    def wait_s(self, owner: str, now_s: float) -> float:
        """Seconds until a new read of `owner` would have the link alone; >= 0."""
        return max(0.0, self._until_s.get(owner, now_s) - now_s)

    def expire(self, now_s: float) -> None:
        """Forgets whoever is idle."""
        self._until_s = {o: until for o, until in self._until_s.items() if until > now_s}

    def forget(self, owner: str) -> None:
        self._until_s.pop(owner, None)

    def stats(self) -> dict[str, int]:
        return {"busy_senders": len(self._until_s)}
