"""Who may write where: one grant per put, over the range its places span, until the put is over."""

from collections.abc import Sequence

from moonpool.messages.segments import RegionGrant
from moonpool.messages.store import PutSlot
from moonpool.transfer import LocalRegion, TransferTimeout

WITHDRAW_S = 0.05  # how long one look takes whether a late writer is out; it is looked at again


class Writers:
    """Grants of open puts, and of those that ran out but whose writers may still be inside."""

    def __init__(self, region: LocalRegion) -> None:
        self._region = region
        self._open: dict[int, RegionGrant] = {}
        self._late: dict[int, RegionGrant | None] = {}  # None: it never got a grant

    def admit(
        self, put: int, slots: Sequence[PutSlot], sizes: Sequence[int], ttl_s: float
    ) -> tuple[RegionGrant, list[PutSlot]]:
        """A grant over the range of all "ok" slots, and the slots relative to it."""
        places = [
            (s.offset, size) for s, size in zip(slots, sizes, strict=True) if s.status == "ok"
        ]
        low = min(place for place, _ in places)
        high = max(place + size for place, size in places)
        grant = self._region.grant("w", offset=low, length=high - low, ttl_s=ttl_s)
        self._open[put] = grant
        moved = [
            PutSlot("ok", s.offset - low, s.generation) if s.status == "ok" else s for s in slots
        ]
        return grant, moved

    def end(self, put: int) -> None:
        """The put ended: what its writer sends from now on is refused."""
        grant = self._open.pop(put, None)
        if grant is not None:
            self._region.revoke(grant)

    def expire(self, put: int) -> None:
        """The put ran out of time: refused from now on, and waited for in `lock_out`."""
        grant = self._late[put] = self._open.pop(put, None)
        if grant is not None:
            self._region.revoke(grant)

    async def lock_out(self) -> list[int]:
        """Late puts whose writers can touch nothing any more. A stopped process may take until it
        is continued or killed."""
        gone = []
        for put, grant in list(self._late.items()):
            try:
                if grant is not None:
                    await self._region.withdraw(grant, timeout_s=WITHDRAW_S)
            except TransferTimeout:
                continue
            del self._late[put]
            gone.append(put)
        return gone

    def stats(self) -> dict[str, int]:
        return {"writers": len(self._open), "late_writers": len(self._late)}
