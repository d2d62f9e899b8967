"""Whether to look for what comes next before sleeping. To wake a sleeping CPU takes longer than a
small transfer, so whoever may expect the next frame within microseconds looks out for it; whoever
may not, or would take a CPU or the GIL from somebody by it, sleeps at once.

`Lookout` is one engine's: what looking may cost. `Watch` is one stream's: whether it pays there.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable

LOOK_MAX_S = 100e-6  # what comes later than this is slept for
SURE = 3  # times that it came in time before it is looked for
SURE_MAX = 8
MISSED = 4  # such times that one miss outweighs
WASTE = 0.02  # of all time, looks that saw nothing
CREDIT_MAX_S = 1e-3  # of it, saved up
HELD_UP_S = 200e-6  # between two glances: the CPU or the GIL was another's
HELD_AGAIN_S = 20e-3  # after the last time: a machine that is not ours alone pauses us now and then
COUNT_S = 2e-3  # between counts of who runs
RECOUNT_S = 50e-6  # when there were many: whoever hands work over runs beside its taker for a while
REST_MIN_S = 2e-3
REST_MAX_S = 0.25

_libc = ctypes.CDLL(None)  # gives the GIL back around every call
_give_way = _libc.sched_yield


class Lookout:
    """Thread-safe, but for `close`, which comes last."""

    def __init__(
        self,
        enabled: bool = True,
        *,
        now: Callable[[], float] = time.monotonic,
        running: Callable[[], int] | None = None,
        cpus: int = 0,
    ) -> None:
        """`running`: how many threads have or want a CPU now, the caller among them; `cpus`: how
        many there are. By default what the kernel says of this machine."""
        self.now = now
        self._load = _Load() if running is None and enabled else None
        self._running = running or (self._load.running if self._load is not None else _nobody)
        self._cpus = cpus or len(os.sched_getaffinity(0))
        self._enabled = enabled and self._cpus > 1
        self._one = threading.Lock()  # two would look past each other for the GIL
        self._credit_s = CREDIT_MAX_S
        self._credited_s = now()
        self._started_s = self._glanced_s = self._ends_s = 0.0  # of the look that goes on
        self._held_up_s = -HELD_AGAIN_S
        self._counted_s = 0.0
        self._doubts = False  # the last count was of too many
        self._rest_s = REST_MIN_S
        self._rests_until_s = 0.0
        self._looks = self._seen = self._rests = 0

    def look(self, see: Callable[[], bool], for_s: float) -> bool:
        """True as soon as `see` is, False after `for_s` or when there is no looking now. `see` must
        give the GIL back while it looks. Whatever it raises comes through."""
        if not self.begin(for_s):
            return False
        seen = False
        try:
            while not (seen := see()) and self.goes_on():
                pass
        finally:
            self.end(seen)
        return seen

    def begin(self, for_s: float) -> bool:
        """Whether to look now, for `for_s` at most. True: until `end` nobody else does."""
        now_s = self.now()
        if not self._enabled or now_s < self._rests_until_s or not self._one.acquire(False):
            return False
        if not self._afford(now_s, for_s):
            self._one.release()
            return False
        self._looks += 1
        self._started_s = self._glanced_s = now_s
        self._ends_s = now_s + for_s
        return True

    def goes_on(self) -> bool:
        """After a glance that saw nothing: whether to take another."""
        _give_way()
        last_s, now_s = self._glanced_s, self.now()
        self._glanced_s = now_s
        if now_s - last_s > HELD_UP_S:
            if now_s - self._held_up_s < HELD_AGAIN_S:
                self._rest(now_s)
            self._held_up_s = now_s
            return False
        if now_s >= self._ends_s:
            self._credit_s -= now_s - self._started_s
            return False
        return now_s - self._counted_s < COUNT_S or not self._crowded(now_s)

    @property
    def is_crowded(self) -> bool:
        """Whether threads wait for CPUs now, or nobody is to know."""
        return not self._enabled or self._running() > self._cpus

    def end(self, seen: bool) -> None:
        """`seen`: it was worth it."""
        self._seen += seen
        self._one.release()

    def _afford(self, now_s: float, for_s: float) -> bool:
        earned_s = WASTE * (now_s - self._credited_s)
        self._credit_s = min(self._credit_s + earned_s, CREDIT_MAX_S)
        self._credited_s = now_s
        return self._credit_s >= for_s

    def _crowded(self, now_s: float) -> bool:
        """Counted while looking: whoever it is that we look for is at work then. One count of many
        may be of a moment."""
        self._counted_s = now_s
        if self._running() <= self._cpus:
            self._doubts = False
            self._rest_s = REST_MIN_S
            return False
        if not self._doubts:
            self._doubts = True
            self._counted_s = now_s - COUNT_S + RECOUNT_S
            return False
        self._rest(now_s)
        return True

    def _rest(self, now_s: float) -> None:
        self._rests += 1
        self._rests_until_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, REST_MAX_S)

    def stats(self) -> dict[str, float]:
        return {
            "look_out": self._enabled,
            "looks": self._looks,
            "looks_seen": self._seen,
            "look_rests": self._rests,
        }

    def close(self) -> None:
        if self._load is not None:
            self._load.close()


class Watch:
    """Learns how long it takes until the next thing comes. Used by one thread."""

    def __init__(self, lookout: Lookout, max_s: float = LOOK_MAX_S) -> None:
        """`max_s`: what comes later is slept for."""
        self._lookout = lookout
        self._max_s = max_s
        self._since_s = 0.0  # 0: nothing is waited for
        self._took_s = max_s / 2
        self._sure = 0  # 0 <= sure <= SURE_MAX

    def begin(self) -> None:
        """From now on something is waited for."""
        self._since_s = self._lookout.now()

    def came(self) -> None:
        """It is there. Without `begin` it tells nothing."""
        if not self._since_s:
            return
        took_s = self._lookout.now() - self._since_s
        self._since_s = 0.0
        if took_s > self._max_s:
            self._sure = max(self._sure - MISSED, 0)
        else:
            self._sure = min(self._sure + 1, SURE_MAX)
            self._took_s += (took_s - self._took_s) / 4

    @property
    def waits(self) -> bool:
        """Whether something is waited for."""
        return self._since_s > 0

    @property
    def expecting(self) -> bool:
        """Whether a look is likely to pay."""
        return self._sure >= SURE

    @property
    def usual_s(self) -> float:
        """How long a look should last."""
        return min(2 * self._took_s, self._max_s)

    def look(self, see: Callable[[], bool]) -> bool:
        """True as soon as `see` is; False when it is time to sleep."""
        return self.expecting and self._lookout.look(see, self.usual_s)

    def stay(self, see: Callable[[], bool]) -> bool:
        """The same for what has begun to come."""
        return self._lookout.look(see, self._max_s)


class _Load:
    """What the kernel counts."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def running(self) -> int:
        """Threads of the machine that run or could. Many when the kernel does not say."""
        try:
            return int(os.pread(self._fd, 64, 0).split()[3].partition(b"/")[0])
        except (OSError, ValueError, IndexError):
            return 1 << 30

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _nobody() -> int:
    return 0
