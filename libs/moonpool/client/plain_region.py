"""Memory for `get_into` and `put_from` where there is no mesh: nobody else can reach it."""

from moonpool.messages import CallerError
from moonpool.messages.segments import RegionGrant


class PlainRegion:
    """A `Region` over a caller's writable buffer. Raises CallerError when it is none."""

    def __init__(self, buffer: object) -> None:
        try:
            view = memoryview(buffer)  # type: ignore[arg-type]
        except TypeError:
            raise CallerError(f"{type(buffer).__name__} is no memory") from None
        if view.readonly or not view.c_contiguous or not view.nbytes:
            raise CallerError("memory must be writable, in one piece, and not empty")
        self._view = view.cast("B")
        self.closing = False

    @property
    def length(self) -> int:
        return self._view.nbytes

    @property
    def view(self) -> memoryview:
        return self._view

    def grant(
        self, rights: str, *, offset: int = 0, length: int | None = None, ttl_s: float = 0.0
    ) -> RegionGrant:
        """Raises CallerError: there are no peers."""
        raise CallerError("memory of a store without a mesh is reached by nobody else")

    def revoke(self, grant: RegionGrant) -> None:
        """Nothing was granted."""

    async def unregister(self, timeout_s: float = 5.0) -> None:
        """Afterwards it is taken no more. Idempotent."""
        self.closing = True
