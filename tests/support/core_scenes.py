"""A node's core in scenes: puts, gets and what is held, a line each."""

from moonpool.cache import make_policy
from moonpool.kv import BlockKey
from moonpool.messages.ids import TenantId
from moonpool.messages.store import GetSlot, PutEndItem, PutItem, PutSlot
from services.store.core import StoreCore
from services.store.limits import Limits
from services.store.tiers import DramTier

PAGE = 4096
ACME = TenantId("acme")
SUMS = b"checksum"  # of one chunk


def make_core(pages: int = 10, **limits: float) -> StoreCore:
    """A node of so many one-page blocks, without headroom unless asked for."""
    given = Limits(**{"headroom": 0.0, **limits})  # type: ignore[arg-type]
    return StoreCore(DramTier(pages * PAGE), make_policy("lru"), given)


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "big"))


def start(
    core: StoreCore, *numbers: int, now: float = 0.0, ttl: float = 10.0, pages: int = 1
) -> tuple[int, list[PutSlot]]:
    items = [PutItem(key(n), pages * PAGE, pages * PAGE) for n in numbers]
    return core.put_start(ACME, items, ttl, now)


def end(core: StoreCore, put: int, *items: PutEndItem, now: float, sound: bool = True) -> list[str]:
    commit = core.begin_commit(put, items, now)
    return core.finish_commit(commit, [sound] * len(commit.doubtful), now)


def store(core: StoreCore, *numbers: int, now: float = 0.0) -> list[str]:
    """Puts whole blocks; a status for those that were not written, and for those that were."""
    put, slots = start(core, *numbers, now=now)
    items = [PutEndItem(key(n), s.generation, SUMS) for n, s in zip(numbers, slots, strict=True)]
    ended = end(core, put, *(i for i in items if i.generation), now=now)
    core.check()
    return ended


def get(core: StoreCore, *numbers: int, now: float = 0.0) -> tuple[int, list[GetSlot]]:
    lease, slots = core.get_start(ACME, [key(n) for n in numbers], 10.0, now)
    core.check()
    return lease, slots


def held(core: StoreCore) -> list[int]:
    return sorted(int.from_bytes(each, "big") for each in core.live_keys())
