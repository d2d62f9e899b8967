"""The ledger: the engine's names of blocks to ours, and which of them it holds in which tier.

The engine names a block by a hash of its own; we name it by its tokens and its whole prefix, so
that anybody who has the tokens can ask for it. A name, once known, is right for ever; what is
held changes. Pure: events in, changes out.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, KeysView
from dataclasses import dataclass

from moonpool.kv import KEY_BYTES, BlockKey, foreign_root, next_key
from services.bridge.vllm_events import Cleared, Event, Hash, Removed, Stored

TIERS = ("hbm", "dram", "nvme", "oss")
NAMES_MAX = 2_000_000  # hashes remembered, those no longer held included
_MEDIA = {
    "": "hbm", "gpu": "hbm", "cpu": "dram", "disk": "nvme", "fs": "nvme", "storage": "nvme",
    "object": "oss", "obj": "oss",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """`keys` came into a tier, or left it."""

    tier: str
    keys: tuple[BlockKey, ...]
    held: bool


class Ledger:
    """Of one engine and one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.block_tokens = 0  # as the engine says; 0: it has not said yet
        self._names: OrderedDict[Hash, BlockKey] = OrderedDict()  # least lately told first
        # tier -> key -> how many of the engine's hashes stand for it
        self._held: dict[str, dict[BlockKey, int]] = {tier: {} for tier in TIERS}
        self._holds: set[tuple[str, Hash]] = set()
        self.orphans = 0  # blocks whose prefix nobody told us
        self.ignored = 0  # of other media, or of layers that see only a part of the prompt
        self.unknown_removals = 0

    def keys(self, tier: str) -> KeysView[BlockKey]:
        """Held in `tier` now."""
        return self._held[tier].keys()

    def take(self, event: Event) -> list[Change]:
        """What the event changes."""
        if isinstance(event, Cleared):
            return self.clear()
        tier = _MEDIA.get(event.medium.lower())
        if tier is None or event.group != 0:
            self.ignored += len(event.hashes)
            return []
        if isinstance(event, Removed):
            return self._removed(tier, event)
        return self._stored(tier, event)

    def clear(self) -> list[Change]:
        """Nothing is held any more: the engine said so, or nobody can know."""
        changes = [
            Change(tier, tuple(held), held=False) for tier, held in self._held.items() if held
        ]
        for held in self._held.values():
            held.clear()
        self._holds.clear()
        return changes

    def _stored(self, tier: str, event: Stored) -> list[Change]:
        self.block_tokens = event.block_tokens
        parent = self._parent(event)
        if parent is None:
            self.orphans += len(event.hashes)
            return []
        fresh: list[BlockKey] = []
        step = event.block_tokens
        for at, (hash, extra) in enumerate(zip(event.hashes, event.extra, strict=True)):
            if extra:
                parent = BlockKey(hashlib.sha256(parent + extra).digest()[:KEY_BYTES])
            parent = next_key(parent, event.tokens[at * step : (at + 1) * step])
            self._name(hash, parent)
            if (tier, hash) in self._holds:
                continue
            self._holds.add((tier, hash))
            count = self._held[tier].get(parent, 0)
            self._held[tier][parent] = count + 1
            if not count:
                fresh.append(parent)
        return [Change(tier, tuple(fresh), held=True)] if fresh else []

    def _parent(self, event: Stored) -> bytes | None:
        if event.parent is None:
            return foreign_root(self.model, event.block_tokens, event.adapter)
        return self._names.get(event.parent)

    def _name(self, hash: Hash, key: BlockKey) -> None:
        self._names[hash] = key
        self._names.move_to_end(hash)
        if len(self._names) > NAMES_MAX:
            self._names.popitem(last=False)

    def _removed(self, tier: str, event: Removed) -> list[Change]:
        gone: list[BlockKey] = []
        for hash in event.hashes:
            key = self._names.get(hash)
            if key is None or (tier, hash) not in self._holds:
                self.unknown_removals += 1
                continue
            self._holds.discard((tier, hash))
            count = self._held[tier].pop(key) - 1
            if count:
                self._held[tier][key] = count
            else:
                gone.append(key)
        return [Change(tier, tuple(gone), held=False)] if gone else []

    def check(self) -> None:
        """What is held is counted right, and bounded."""
        assert len(self._names) <= NAMES_MAX
        assert sum(sum(held.values()) for held in self._held.values()) == len(self._holds)
        assert all(count > 0 for held in self._held.values() for count in held.values())

    def stats(self) -> dict[str, int]:
        return {
            "names": len(self._names),
            "orphans": self.orphans,
            "ignored": self.ignored,
            "unknown_removals": self.unknown_removals,
            **{f"held_{tier}": len(held) for tier, held in self._held.items()},
        }


def held_changes(events: Iterable[Event], ledger: Ledger) -> list[Change]:
    """The changes of a whole batch, in order."""
    return [change for event in events for change in ledger.take(event)]
