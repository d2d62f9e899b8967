"""Names of the values that a node holds, by tenant and in order. Pure.

Fed with what changed in each tier; names themselves are read out of the objects.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moonpool.kv import BlockKey
from moonpool.kv.named import MARK, read_name, read_trailer, value_size
from moonpool.messages.ids import TenantId
from moonpool.messages.store import ListedName


@dataclass(frozen=True, slots=True)
class Named:
    """What an object says it is."""

    tenant: TenantId
    name: str
    size_bytes: int  # of the value


@dataclass(slots=True)
class _Entry:
    named: Named | None = None  # None: nobody has read its name yet
    tiers: set[str] = field(default_factory=set)  # where it lies; never empty


def identify(tenant: TenantId, view: memoryview) -> Named | None:
    """Reads an object's own words; None when it is no named value."""
    trailer = read_trailer(view, view.nbytes)
    if trailer is None:
        return None
    try:
        return Named(tenant, read_name(view, trailer), value_size(view, trailer))
    except UnicodeDecodeError:
        return None


class Names:
    """One per node. Removal and insertion move a tenant's later names in memory: a microsecond per
    few thousand."""

    def __init__(self) -> None:
        self.unread: dict[BlockKey, None] = {}  # named by their key; their name is to be read
        self._entries: dict[BlockKey, _Entry] = {}
        self._order: dict[TenantId, list[str]] = {}  # sorted
        self._keys: dict[tuple[TenantId, str], BlockKey] = {}

    def changed(
        self,
        tier: str,
        stored: Sequence[BlockKey],
        removed: Sequence[BlockKey],
        read: Callable[[BlockKey], Named | None],
    ) -> None:
        """What a tier says. `read` reads an object that lies in memory, None for others."""
        for key in removed:
            if key.startswith(MARK):
                self._left(tier, key)
        for key in stored:
            if key.startswith(MARK):
                self._came(tier, key, read(key))

    def learn(self, key: BlockKey, named: Named | None) -> None:
        """What was read for one of `unread`; None: it is no named value after all."""
        self.unread.pop(key, None)
        entry = self._entries.get(key)
        if entry is not None and entry.named is None and named is not None:
            self._set(key, entry, named)

    def page(
        self, tenant: TenantId, prefix: str, after: str, limit: int
    ) -> tuple[list[ListedName], bool]:
        """Up to `limit` names above `after` with this prefix, and whether there are more."""
        order = self._order.get(tenant, [])
        start = max(bisect_left(order, prefix), bisect_right(order, after) if after else 0)
        found: list[ListedName] = []
        for name in order[start : start + limit + 1]:
            if not name.startswith(prefix):
                return found, False
            if len(found) == limit:
                return found, True
            named = self._entries[self._keys[tenant, name]].named
            assert named is not None
            found.append(ListedName(name, named.size_bytes))
        return found, False

    def key_of(self, tenant: TenantId, name: str) -> BlockKey:
        """KeyError when it is not here."""
        return self._keys[tenant, name]

    def stats(self) -> dict[str, int]:
        return {"names": len(self._keys), "names_unread": len(self.unread)}

    def check(self) -> None:
        """Asserts that entries, order and keys agree."""
        assert all(entry.tiers for entry in self._entries.values())
        named = {k: e.named for k, e in self._entries.items() if e.named is not None}
        assert {(n.tenant, n.name): k for k, n in named.items()} == self._keys
        for tenant, order in self._order.items():
            assert order == sorted(n.name for n in named.values() if n.tenant == tenant)
        assert all(self._entries[key].named is None for key in self.unread)

    # --- inside ---

    def _came(self, tier: str, key: BlockKey, named: Named | None) -> None:
        entry = self._entries.setdefault(key, _Entry())
        entry.tiers.add(tier)
        if named is not None:
            self.unread.pop(key, None)
            self._set(key, entry, named)
        elif entry.named is None:
            self.unread[key] = None

    def _left(self, tier: str, key: BlockKey) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.tiers.discard(tier)
        if not entry.tiers:
            del self._entries[key]
            self.unread.pop(key, None)
            if entry.named is not None:
                self._forget(entry.named)

    def _set(self, key: BlockKey, entry: _Entry, named: Named) -> None:
        if entry.named is not None:
            self._forget(entry.named)
            entry.named = None
        if (named.tenant, named.name) in self._keys:  # two keys claim one name: the first stays
            return
        entry.named = named
        self._keys[named.tenant, named.name] = key
        insort(self._order.setdefault(named.tenant, []), named.name)

    def _forget(self, named: Named) -> None:
        del self._keys[named.tenant, named.name]
        order = self._order[named.tenant]
        del order[bisect_left(order, named.name)]
        if not order:
            del self._order[named.tenant]
