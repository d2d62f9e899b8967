"""A grant that was opened, with the paths that lead to its owner, best first."""

from moonpool.messages.segments import RegionGrant
from moonpool.transfer.regions import RegionTable
from moonpool.transfer.transports.base import Path


class OpenedGrant:
    """Cheap: connections are made when the first transfer needs them, and shared per peer."""

    __slots__ = ("__weakref__", "grant", "opener", "paths")

    def __init__(self, grant: RegionGrant, paths: list[Path], opener: RegionTable) -> None:
        self.grant = grant
        self.opener = opener  # of the engine whose paths these are
        self.paths = paths

    def __repr__(self) -> str:
        paths = ",".join(path.name for path in self.paths)
        return f"<OpenedGrant {self.grant.segment}/{self.grant.region} over {paths or 'nothing'}>"
