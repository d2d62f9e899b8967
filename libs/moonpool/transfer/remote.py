"""A grant that was opened, with the paths that lead to its owner, best first."""

from moonpool.messages.segments import RegionGrant
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.spraying import SprayedPath
from moonpool.transfer.spraying.sizes import SLICE_BYTES_MAX
from moonpool.transfer.transports.base import Path


class OpenedGrant:
    """Cheap: connections are made when the first transfer needs them, and shared per peer."""

    __slots__ = ("__weakref__", "_ranks", "_sprayed", "grant", "opener", "paths", "ways")

    def __init__(self, grant: RegionGrant, paths: list[Path], opener: RegionTable) -> None:
        self.grant = grant
        self.opener = opener  # of the engine whose paths these are
        self.paths = paths
        self.ways = paths[0].ways  # that share the bytes, while the best path works
        self._sprayed = paths[0] if isinstance(paths[0], SprayedPath) else None
        self._ranks: dict[str, tuple[int, ...]] = {}

    def slice_bytes(self, payload_bytes: int) -> int:
        """How finely a transfer of so many bytes should be cut."""
        if self._sprayed is None:
            return SLICE_BYTES_MAX
        return self._sprayed.slice_bytes(payload_bytes)

    def ranks(self, transport: str) -> tuple[int, ...]:
        """How near each of the owner's NICs is to this memory, the lowest nearest."""
        ranks = self._ranks.get(transport)
        if ranks is None:
            ends = self.grant.endpoints
            ranks = tuple(e.rank for e in ends if e.transport == transport)
            self._ranks[transport] = ranks
        return ranks

    def __repr__(self) -> str:
        paths = ",".join(path.name for path in self.paths)
        return f"<OpenedGrant {self.grant.segment}/{self.grant.region} over {paths or 'nothing'}>"
