"""How many nodes are to hold a block, and who sees to it when one of them is gone. Pure.

There is no master: of the nodes that hold a block, the first in the order that its key gives to all
nodes acts, the others wait. Copies beyond the wanted number are the first to be evicted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moonpool.kv import BlockKey
from services.store.ladder import Ladder
from services.store.objects import State
from services.store.pins import Pins
from services.store.residents import Residents

GUARDED_MAX = 1 << 20  # blocks that want more than one copy; of more, one is kept as of all others


@dataclass(frozen=True, slots=True)
class Verdict:
    """What this node is to do about one block."""

    targets: tuple[str, ...] = ()  # nodes to copy it to
    is_extra: bool = False  # our copy is one too many
    is_open: bool = False  # not known well enough: look again


def judge(
    me: str, ranked: Sequence[str], holders: Iterable[str], silent: Iterable[str], wanted: int
) -> Verdict:
    """`ranked`: nodes in the key's own order; `holders` have it, us included; `silent` did not
    answer but may come back: they are neither replaced nor relied on."""
    having, quiet = set(holders), set(silent)
    in_order = [node for node in ranked if node in having]
    if len(in_order) + len(quiet) >= wanted > len(in_order):
        return Verdict(is_open=True)
    missing = wanted - len(in_order)
    if missing > 0 and in_order and in_order[0] == me:
        free = [node for node in ranked if node not in having and node not in quiet]
        return Verdict(tuple(free[:missing]), is_open=len(free) < missing)
    return Verdict(is_extra=me in in_order[wanted:])


class Copies:
    """Blocks here that are to lie on several nodes. `take_due` says which to look after now."""

    def __init__(self, residents: Residents, ladder: Ladder, pins: Pins) -> None:
        self._residents = residents
        self._ladder = ladder
        self._pins = pins
        self._wanted: dict[BlockKey, int] = {}  # > 1
        self._due: dict[BlockKey, None] = {}
        self.copied = 0  # to other nodes
        self.failed = 0

    def want(self, keys: Iterable[BlockKey], replicas: int) -> None:
        """So many nodes are to hold these. 1 changes nothing that was asked for before."""
        if replicas < 2:
            return
        for key in keys:
            if key in self._wanted or len(self._wanted) < GUARDED_MAX:
                self._wanted[key] = replicas
                self._due[key] = None

    def wanted(self, key: BlockKey) -> int:
        return max(1, self._wanted.get(key, 1), self._pins.replicas_of(key))

    def all_due(self) -> None:
        """Somebody went: all are to be looked after."""
        self._due.update(dict.fromkeys(self._wanted))
        self._due.update(dict.fromkeys(self._pins.replicated()))

    def again(self, keys: Iterable[BlockKey]) -> None:
        """What was taken by `take_due` is not done."""
        self._due.update(dict.fromkeys(keys))

    def take_due(self, count_max: int) -> list[BlockKey]:
        """Some of those that are due and here; those that are gone are forgotten."""
        taken: list[BlockKey] = []
        while self._due and len(taken) < count_max:
            key = next(iter(self._due))
            del self._due[key]
            obj = self._residents.objects.get(key)
            if obj is not None and obj.state is not State.LIVE:
                continue  # on its way up: its copy below counts
            if obj is None and self._ladder.find(key) is None:
                self._wanted.pop(key, None)
            elif self.wanted(key) > 1:
                taken.append(key)
        return taken

    def stats(self) -> dict[str, int]:
        return {
            "replicated": len(self._wanted),
            "replicas_due": len(self._due),
            "replicas_made": self.copied,
            "replicas_failed": self.failed,
        }
