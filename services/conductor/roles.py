"""Roles: lets instances that can do both do only what is short, and both again when it is not.

Hysteresis keeps them still: a side must be short, and the other have room, for `HOLD_S` without a
break; after a change nothing changes for `REST_S`; and the way back needs a margin. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

HOLD_S = 30.0
REST_S = 60.0
SHORT_ABOVE = 1.0  # needed over had
ROOM_BELOW = 0.7
LEFT_BELOW = 0.9  # of the side that gives an instance up, afterwards
BACK_BELOW = 0.8  # of the side that loses it, afterwards


@dataclass(frozen=True, slots=True)
class Dual:
    """One instance that can do both."""

    id: str
    duty: str  # "both", "prefill", "decode"
    busy: float  # answers and prompts under way: the idlest is asked first


@dataclass(frozen=True, slots=True)
class Sides:
    """One model: what is needed, and what instances of one kind alone there are."""

    prefills_needed: float
    decodes_needed: float
    prefills: int = 0
    decodes: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """Tell `id` to do `duty` from now on."""

    id: str
    duty: str


class RoleSwitcher:
    """Of one model. Time is handed in."""

    def __init__(self) -> None:
        self._wish: str = ""  # the change that would be right now
        self._wished_s = 0.0
        self._changed_s = float("-inf")
        self.orders = 0

    def decide(self, sides: Sides, duals: Sequence[Dual], now_s: float) -> Order | None:
        """At most one change at a time."""
        order = self._right_now(sides, duals)
        wish = order.duty if order else ""
        if wish != self._wish:
            self._wish, self._wished_s = wish, now_s
        if order is None or now_s - self._wished_s < HOLD_S or now_s - self._changed_s < REST_S:
            return None
        self._changed_s, self._wish = now_s, ""
        self.orders += 1
        return order

    def _right_now(self, sides: Sides, duals: Sequence[Dual]) -> Order | None:
        both = [dual for dual in duals if dual.duty == "both"]
        for short, other in (("prefill", "decode"), ("decode", "prefill")):
            mine, theirs = _load(sides, duals, short), _load(sides, duals, other)
            if mine > SHORT_ABOVE and theirs < ROOM_BELOW:
                back = [dual for dual in duals if dual.duty == other]
                pick = _idlest(back or both)
                duty = "both" if back else short
                if pick and _load(sides, _with(duals, pick, duty), other) < LEFT_BELOW:
                    return Order(pick.id, duty)
        for duty in ("prefill", "decode"):
            pick = _idlest([dual for dual in duals if dual.duty == duty])
            if pick and _load(sides, _with(duals, pick, "both"), duty) < BACK_BELOW:
                return Order(pick.id, "both")
        return None


def _load(sides: Sides, duals: Sequence[Dual], side: str) -> float:
    """Needed over had; one that does both is half of each."""
    needed = sides.prefills_needed if side == "prefill" else sides.decodes_needed
    had = float(sides.prefills if side == "prefill" else sides.decodes)
    had += sum({"both": 0.5, side: 1.0}.get(dual.duty, 0.0) for dual in duals)
    return needed / had if had else float("inf")


def _with(duals: Sequence[Dual], changed: Dual, duty: str) -> list[Dual]:
    return [Dual(d.id, duty, d.busy) if d is changed else d for d in duals]


def _idlest(duals: Sequence[Dual]) -> Dual | None:
    return min(duals, key=lambda dual: (dual.busy, dual.id), default=None)
