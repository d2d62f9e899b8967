"""Whether a lower tier can be used, from what became of its reads and writes. Pure.

    ok -- failures in a row --> away -- a probe succeeds --> ok
    ok -- refused ------------> refused -- a probe succeeds --> ok
    ok -- a write is not taken --> read-only -- a write succeeds --> ok

Waiting times double up to a minute, so that a broken tier costs little and a mended one comes back.
"""

from services.store.tiers.errors import VaultReadOnly, VaultRefused

FAILURES_MAX = 3  # in a row; the last of them makes it away
WAIT_FIRST_S = 1.0
WAIT_MAX_S = 60.0


class Health:
    """Of one tier. It starts away, until its first success."""

    def __init__(self, text: str = "starting") -> None:
        self.readable = False
        self._takes_writes = True
        self._text = text
        self._failures = 0
        self._wait_s = WAIT_FIRST_S
        self._again_s = 0.0  # when to try what is not possible now

    def text(self) -> str:
        """ "ok", or what is wrong."""
        return self._text if not self.readable or not self._takes_writes else "ok"

    def writable(self, now_s: float) -> bool:
        """A read-only tier is tried with a write now and then."""
        return self.readable and (self._takes_writes or now_s >= self._again_s)

    def probe_due(self, now_s: float) -> bool:
        return not self.readable and now_s >= self._again_s

    def succeeded(self, *, wrote: bool) -> None:
        self._failures = 0
        self.readable = True
        if wrote:
            self._takes_writes = True
        if self._takes_writes:
            self._wait_s = WAIT_FIRST_S

    def failed(self, error: Exception, now_s: float) -> None:
        """VaultAway, VaultRefused or VaultReadOnly: anything else is not the tier's fault."""
        if isinstance(error, VaultReadOnly):
            self._takes_writes = False
            self._wait(f"read-only: {error}", now_s)
            return
        self._failures += 1
        if isinstance(error, VaultRefused) or self._failures >= FAILURES_MAX or not self.readable:
            self.readable = False
            self._wait(str(error), now_s)

    def _wait(self, text: str, now_s: float) -> None:
        self._text = text
        self._again_s = now_s + self._wait_s
        self._wait_s = min(self._wait_s * 2, WAIT_MAX_S)
