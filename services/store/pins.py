"""Pins: soft ones hold an object for a while, as long as there is other room; hard ones always."""

from moonpool.kv import BlockKey
from services.store.deadlines import Deadlines
from services.store.limits import Limits
from services.store.objects import Seat, State, StoredObject
from services.store.residents import Residents

PIN_KINDS = ("soft", "hard", "none")


class Pins:
    """Who is pinned, until when. Works on LIVE objects."""

    def __init__(self, residents: Residents, limits: Limits) -> None:
        self._residents = residents
        self._limits = limits
        self._soft: Deadlines[tuple[BlockKey, int]] = Deadlines()  # (key, generation)

    def pin(self, obj: StoredObject, kind: str, ttl_s: float, now_s: float) -> str:
        """ "pinned", "unpinned", or "over_quota" (hard pins only). A hard pin never turns soft."""
        if kind == "none":
            if obj.seat in (Seat.SOFT, Seat.HARD):
                self._residents.reseat(obj, Seat.ORDER, now_s)
            return "unpinned"
        if obj.seat is Seat.HARD:
            return "pinned"
        if kind == "soft":
            obj.soft_until_s = now_s + min(ttl_s, self._limits.soft_pin_max_s)
            self._residents.reseat(obj, Seat.SOFT, now_s)
            self._soft.add((obj.key, obj.generation), obj.soft_until_s)
            return "pinned"
        room_bytes = self._residents.tier.bytes_total * self._limits.hard_pin_share_max
        if self._residents.bytes_hard + self._residents.footprint(obj) > room_bytes:
            return "over_quota"
        self._residents.reseat(obj, Seat.HARD, now_s)
        return "pinned"

    def expire(self, now_s: float) -> None:
        """Ends soft pins that ran out. One renewed or replaced meanwhile stays."""
        for key, generation in self._soft.pop_due(now_s):
            obj = self._residents.objects.get(key)
            if (
                obj is not None
                and obj.state is State.LIVE
                and obj.seat is Seat.SOFT
                and obj.generation == generation
                and obj.soft_until_s <= now_s
            ):
                self._residents.reseat(obj, Seat.ORDER, now_s)
