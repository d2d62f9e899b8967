"""The keys that an owner has handed out over one link, and the jobs that wait for more. One thread
uses it."""

import time
from collections.abc import Iterator

from moonpool.messages.segments import RegionGrant
from moonpool.transfer.errors import PeerLost
from moonpool.transfer.job import Job, PathFailed
from moonpool.transfer.transports.rdma_wire import Ask, Granted, Withdrawn
from moonpool.transfer.wire import Status, error_of

GRANTS_MAX = 4096  # before those that have expired are forgotten, and then all


def refusal(peer: str, granted: Granted) -> Exception:
    """What an answer that is no yes means for a job."""
    try:
        status = Status(granted.status)
    except ValueError:
        status = Status.BAD_FRAME
    if status in (Status.NOT_SHAREABLE, Status.BUSY):
        return PathFailed(PeerLost(f"{peer} does not share this over rdma now"))
    return error_of(status, peer)


def ask_of(grant: RegionGrant) -> Ask:
    return Ask(grant.region, grant.key, grant.offset, grant.length)


class Grants:
    def __init__(self) -> None:
        self._known: dict[Ask, tuple[Granted, float]] = {}  # until when (unix time, 0: no end)
        self._waiting: dict[Ask, list[Job]] = {}

    def find(self, ask: Ask) -> Granted | None:
        """The keys, when they are known and valid."""
        found = self._known.get(ask)
        if found is None or (found[1] and found[1] <= time.time()):
            return None
        return found[0]

    def park(self, ask: Ask, job: Job) -> bool:
        """The job waits for the answer. True when the owner has to be asked."""
        waiting = self._waiting.setdefault(ask, [])
        waiting[:] = [each for each in waiting if not each.claimed]
        waiting.append(job)
        return len(waiting) == 1

    def answered(self, granted: Granted) -> list[Job]:
        """The jobs that still wait for this."""
        return [job for job in self._waiting.pop(granted.ask, []) if not job.claimed]

    def remember(self, granted: Granted, expires_unix_s: float) -> None:
        if len(self._known) >= GRANTS_MAX:
            now_s = time.time()
            kept = {a: g for a, g in self._known.items() if not g[1] or g[1] > now_s}
            self._known = kept if len(kept) < GRANTS_MAX else {}
        self._known[granted.ask] = (granted, expires_unix_s)

    def forget(self, ask: Ask) -> None:
        self._known.pop(ask, None)

    def withdraw(self, word: Withdrawn) -> None:
        for ask in [a for a in self._known if a.region == word.region]:
            if word.key in (b"", ask.key):
                del self._known[ask]

    @property
    def asked(self) -> bool:
        """Whether an answer is owed."""
        return bool(self._waiting)

    def clear(self) -> Iterator[Job]:
        """Forgets all; the jobs that waited."""
        waiting, self._waiting = self._waiting, {}
        self._known.clear()
        return (job for jobs in waiting.values() for job in jobs)
