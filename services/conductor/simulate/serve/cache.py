"""A cache of blocks of one owner and tier, with a real eviction policy; says what came and went."""

from collections.abc import Callable, Sequence

from moonpool.cache import BlockHint, make_policy

Told = Callable[[list[int], list[int]], None]  # blocks stored, blocks removed


class BlockCache:
    """At most `blocks_max` blocks, by number. `tell` hears of every change."""

    def __init__(self, blocks_max: int, policy: str, tell: Told) -> None:
        self.blocks_max = blocks_max
        self._policy = make_policy(policy, blocks_max)
        self._tell = tell
        self.here: set[int] = set()
        self.evictions = 0

    def longest(self, blocks: Sequence[int], start: int = 0) -> int:
        """Blocks `[start, n)` are all here; n."""
        here = self.here
        for at in range(start, len(blocks)):
            if blocks[at] not in here:
                return at
        return len(blocks)

    def holds(self, blocks: Sequence[int]) -> bool:
        return self.here.issuperset(blocks)

    def touch(self, blocks: Sequence[int], now_s: float) -> None:
        """A read of blocks that are here."""
        self._policy.touch(blocks, now_s, BlockHint(run_blocks=len(blocks)))

    def add(self, blocks: Sequence[int], now_s: float) -> list[int]:
        """All of a prompt's full blocks were used: keeps them, and makes room. What had to go."""
        here, policy = self.here, self._policy
        hint = BlockHint(run_blocks=len(blocks))
        old = [block for block in blocks if block in here]
        # The tail goes in first: a prompt's head outlives it.
        new = [block for block in reversed(blocks) if block not in here]
        for block in new:
            here.add(block)
            policy.insert(block, 1, now_s, hint)
        policy.touch(old, now_s, hint)
        gone: list[int] = []
        while len(here) > self.blocks_max:
            victim = policy.victim(now_s)
            assert victim is not None, "a cache with too many blocks has a victim"
            policy.remove(victim)
            here.remove(victim)
            gone.append(victim)
        self.evictions += len(gone)
        if new or gone:
            lost = set(gone)
            stored = [block for block in reversed(new) if block not in lost]
            fresh = set(new)
            self._tell(stored, [block for block in gone if block not in fresh])
        return gone

    def check(self) -> None:
        assert len(self.here) <= self.blocks_max, "no more than it can hold"
        assert len(self._policy) == len(self.here), "all of it can be evicted"
