"""A grant that was opened, with the paths that lead to its owner, best first."""

from moonpool.messages.segments import RegionGrant
from moonpool.transfer.transports.base import Path


class OpenedGrant:
    """Cheap: connections are made when the first transfer needs them, and shared per peer."""

    __slots__ = ("__weakref__", "grant", "paths")

    def __init__(self, grant: RegionGrant, paths: list[Path]) -> None:
        self.grant = grant
        self.paths = paths

    def __repr__(self) -> str:
        paths = ",".join(path.name for path in self.paths)
        return f"<OpenedGrant {self.grant.segment}/{self.grant.region} over {paths or 'nothing'}>"
