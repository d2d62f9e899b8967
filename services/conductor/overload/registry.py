"""Admission modes by name, as settings and the simulator know them."""

from collections.abc import Callable

from services.conductor.overload.base import Gate
from services.conductor.overload.early import EarlyGate
from services.conductor.overload.none import BaselineGate, NoGate
from services.conductor.overload.ours import OurGate
from services.conductor.overload.predicted import PredictedGate

_GATES: dict[str, Callable[[bool], Gate]] = {
    "none": lambda second_look: NoGate(),
    "baseline": lambda second_look: BaselineGate(),
    "early": lambda second_look: EarlyGate(),
    "predicted": lambda second_look: PredictedGate(),
    "ours": OurGate,
}

GATE_NAMES: tuple[str, ...] = tuple(_GATES)


def make_gate(name: str, second_look: bool = False) -> Gate:
    """`second_look`: decodes drop what does not fit any more once it is prefilled. ValueError names
    the modes there are."""
    if name not in _GATES:
        raise ValueError(f"admission {name!r} is none of {', '.join(GATE_NAMES)}")
    return _GATES[name](second_look)
