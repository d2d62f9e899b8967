"""What was changed while other nodes were away: kept for them until they come back. Pure.

A note says which names of a tenant are void on the absent node, and since when; what was put there
later is newer than the note and stays. Only names have notes: other keys mean the same bytes
everywhere.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from moonpool.kv import BlockKey
from moonpool.kv.named import MARK
from moonpool.messages.absence import Note
from moonpool.messages.ids import TenantId

NOTES_MAX = 100_000  # over all absent nodes; beyond it whole tenants are noted
ABSENT_MAX = 64  # nodes; who is away for the longest is forgotten
WRITTEN_MAX = 100_000  # of our own names, the latest
PAGE_MAX = 2000

_What = tuple[TenantId, str, bytes, str]  # tenant, kind, key, prefix
_WIDE = ("all", "named", "prefix")


@dataclass(slots=True)
class _Since:
    number: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Page:
    notes: list[Note]
    until: int  # number of the last one


class Notes:
    """One per node. Times are the node's own clock."""

    def __init__(self, notes_max: int = NOTES_MAX, written_max: int = WRITTEN_MAX) -> None:
        self.absent: OrderedDict[str, OrderedDict[_What, _Since]] = OrderedDict()
        self._notes_max = notes_max
        self._written_max = written_max
        self._number = 0
        self._count = 0  # over all of `absent`
        self._folded = 0
        self._written: OrderedDict[BlockKey, float] = OrderedDict()  # when; the latest last
        self._void: set[tuple[TenantId, BlockKey | str]] = set()  # of an earlier life of ours

    # --- our own names ---

    def written(self, tenant: TenantId, key: BlockKey, now_s: float) -> None:
        """An object was put under this key here."""
        if not key.startswith(MARK):
            return
        self._written[key] = now_s
        self._written.move_to_end(key)
        if len(self._written) > self._written_max:
            self._written.popitem(last=False)
        if self.absent:
            self.changed(tenant, (key,), now_s)

    def is_newer(self, key: BlockKey, since_s: float) -> bool:
        """Whether it was put here after `since_s`, as far as is known."""
        return self._written.get(key, float("-inf")) > since_s

    def void(self, tenant: TenantId, what: BlockKey | str) -> None:
        """What an earlier life of ours had under this key, or as "named", "all", is not to be
        believed when it is brought back."""
        if len(self._void) < self._notes_max or isinstance(what, str):
            self._void.add((tenant, what))
        else:
            self._void.add((tenant, "named"))

    def is_void(self, tenant: TenantId, key: BlockKey) -> bool:
        if not self._void:
            return False
        is_named = key.startswith(MARK) and (tenant, "named") in self._void
        return is_named or (tenant, key) in self._void or (tenant, "all") in self._void

    # --- for others ---

    def miss(self, node: str) -> None:
        """From now on all changes are noted for it."""
        if node in self.absent:
            return
        self.absent[node] = OrderedDict()
        while len(self.absent) > ABSENT_MAX:
            self.forget(next(iter(self.absent)))

    def forget(self, node: str) -> None:
        """It knows all, or never will."""
        self._count -= len(self.absent.pop(node, ()))

    def changed(
        self,
        tenant: TenantId,
        keys: Iterable[BlockKey],
        at_s: float,
        nodes: Sequence[str] | None = None,
    ) -> None:
        """These were replaced or removed; for `nodes`, or all that are absent."""
        named = [key for key in keys if key.startswith(MARK)]
        for node in self._those(nodes):
            for key in named:
                self._note(node, (tenant, "key", key, ""), at_s)
        self._bound(at_s)

    def cleared(
        self,
        tenant: TenantId,
        at_s: float,
        prefix: str | None = None,
        nodes: Sequence[str] | None = None,
    ) -> None:
        """All of a tenant's was removed, or the names that begin with `prefix`."""
        what = (tenant, "all", b"", "") if prefix is None else (tenant, "prefix", b"", prefix)
        for node in self._those(nodes):
            self._note(node, what, at_s)
        self._bound(at_s)

    def page(self, node: str, after: int, now_s: float, limit: int = PAGE_MAX) -> Page:
        """What it should know; what has a number up to `after` it knows already."""
        notes = self.absent.get(node)
        if notes is None:
            return Page([], after)
        known = [what for what, _ in takewhile(lambda item: item[1].number <= after, notes.items())]
        for what in known:
            del notes[what]
        self._count -= len(known)
        some = list(islice(notes.items(), limit))
        said = [
            Note(tenant, kind, max(0.0, now_s - since.at_s), key, prefix)
            for (tenant, kind, key, prefix), since in some
        ]
        return Page(said, some[-1][1].number if some else after)

    def has(self, node: str) -> bool:
        """Whether there is anything that it should know."""
        return bool(self.absent.get(node))

    def stats(self) -> dict[str, int]:
        return {
            "notes": self._count,
            "notes_absent": len(self.absent),
            "notes_folded": self._folded,
        }

    def check(self) -> None:
        """Asserts what must hold."""
        assert self._count == sum(map(len, self.absent.values()))
        assert len(self.absent) <= ABSENT_MAX
        assert len(self._written) <= self._written_max
        for notes in self.absent.values():
            numbers = [since.number for since in notes.values()]
            assert numbers == sorted(set(numbers))

    # --- inside ---

    def _those(self, nodes: Sequence[str] | None) -> list[str]:
        if nodes is None:
            return list(self.absent)
        for node in nodes:
            self.miss(node)
        return [node for node in dict.fromkeys(nodes) if node in self.absent]

    def _note(self, node: str, what: _What, at_s: float) -> None:
        notes = self.absent[node]
        before = notes.pop(what, None)
        self._count += before is None
        self._number += 1
        notes[what] = _Since(self._number, max(at_s, before.at_s) if before else at_s)

    def _bound(self, at_s: float) -> None:
        """Too many: of the node with most of them, "older than now" for whole tenants."""
        while self._count > self._notes_max:
            node = max(self.absent, key=lambda each: len(self.absent[each]))
            narrow = [what for what in self.absent[node] if what[1] not in _WIDE]
            if not narrow:
                self.forget(node)
                continue
            for what in narrow:
                del self.absent[node][what]
            self._count -= len(narrow)
            self._folded += len(narrow)
            for tenant in {what[0] for what in narrow}:
                self._note(node, (tenant, "named", b"", ""), at_s)
