"""pyverbs, if it is there. Optional: no package of ours asks for it, Debian calls it
python3-pyverbs. Its calls keep the GIL, so none that could wait for long is made anywhere."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from moonpool.transfer.transports.base import TransportUnavailable

MODULES = ("addr", "cq", "device", "enums", "mr", "pd", "qp", "wr")


@dataclass(frozen=True, slots=True)
class Verbs:
    """pyverbs' modules by name. It brings no types, hence Any."""

    addr: Any
    cq: Any
    device: Any
    enums: Any
    mr: Any
    pd: Any
    qp: Any
    wr: Any
    error: type[Exception]  # what all of its calls raise


def load() -> Verbs:
    """Raises TransportUnavailable."""
    try:
        modules = {name: import_module(f"pyverbs.{name}") for name in MODULES}
        error = import_module("pyverbs.pyverbs_error").PyverbsError
    except ImportError as missing:
        raise TransportUnavailable(f"pyverbs cannot be imported: {missing}") from missing
    return Verbs(**modules, error=error)
