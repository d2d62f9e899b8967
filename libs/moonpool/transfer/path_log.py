"""One line when a way to a peer begins to work, and one when it stops: both ends and the way."""

import logging
from dataclasses import dataclass, field

from moonpool.messages.segments import RegionGrant

log = logging.getLogger(__name__)
PEERS_MAX = 1024  # the one that was heard of first is forgotten


@dataclass(slots=True)
class _Peer:
    works: set[str] = field(default_factory=set)  # by transport
    failed: set[str] = field(default_factory=set)


class PathLog:
    """Says nothing twice: a path is told of when it works for the first time, when it fails, and
    when it works again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._peers: dict[tuple[str, str], _Peer] = {}  # by segment and epoch

    def worked(self, grant: RegionGrant, path: str) -> None:
        """Cheap: called for every slice."""
        peer = self._peers.get((grant.segment, grant.epoch))
        if peer is None:
            peer = self._known(grant)
        if path not in peer.works:
            peer.works.add(path)
            again = " again" if path in peer.failed else ""
            peer.failed.discard(path)
            instead = f", in place of {', '.join(sorted(peer.failed))}" if peer.failed else ""
            log.info("path open%s: %s%s", again, self._way(grant, path), instead)

    def failed(self, grant: RegionGrant, path: str, why: object) -> None:
        peer = self._known(grant)
        if path not in peer.failed:
            peer.failed.add(path)
            peer.works.discard(path)
            log.warning("path failed: %s: %s", self._way(grant, path), why)

    def stats(self) -> dict[str, float]:
        peers = list(self._peers.values())
        return {
            "paths_working": sum(len(peer.works) for peer in peers),
            "paths_failed": sum(len(peer.failed) for peer in peers),
        }

    def _known(self, grant: RegionGrant) -> _Peer:
        key = (grant.segment, grant.epoch)
        if key not in self._peers and len(self._peers) >= PEERS_MAX:
            del self._peers[next(iter(self._peers))]
        return self._peers.setdefault(key, _Peer())

    def _way(self, grant: RegionGrant, path: str) -> str:
        where = ", ".join(e.address for e in grant.endpoints if e.transport == path)
        return f"{self._name} -> {grant.segment} over {path} ({where})"
