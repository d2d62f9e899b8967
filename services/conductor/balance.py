"""The balancer: which stretches of hot prefixes should lie on one more node, and which copies go.

Fetching is what makes copies as a by-product; this makes them before they are fetched for. Every
plan that fetches says what it paid for each stretch of blocks, and what it would have paid had the
nearest node with room held it. The seconds saved by such a copy fade by half each minute. A copy
is proposed while it would save several times what sending it takes, without a break for a while;
one that nobody read for long is called one too many. Its node then lets it go first. Between both
lies a gap, and after a copy went there is a rest, so nothing is sent to and fro. Sending is
bounded to a small share of one link's time, and rides behind all other transfers. Pure.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moonpool.kv import KEY_BYTES
from services.conductor.bandwidth import TransferPredictor
from services.conductor.reuse import Reuse, Step
from services.conductor.topology import RANKS, Spot, distance

SPAN = 4  # blocks that are copied together
HALF_LIFE_S = 60.0  # of the wish for a copy
WORTH = 4.0  # a copy saves so many times what it takes, in the next minute, to be made
HOLD_S = 10.0  # without a break
ROOM_MIN = 0.2  # free share of a node that gets copies
COLD_S = 300.0  # unread: one too many
REST_S = 600.0  # after that, no copy there
SENDING_SHARE = 0.05  # of one link's time
BURST_S = 0.5
ORDERS_MAX = 16  # at once
_SPANS_MAX = 64  # noted of one plan
_KEPT_MAX = 8192
_WISH_MIN_S = 1e-3  # less is not looked at
_HIDDEN_SHARE = 0.1  # of a load that hides behind compute counts


@dataclass(frozen=True, slots=True)
class Site:
    """A node that may hold copies."""

    id: str
    spot: Spot
    room: float  # free share of its memory, 0..1


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a plan fetches, and for whom."""

    tenant: str
    keys: bytes  # of all full blocks of the prompt
    steps: Sequence[Step]
    reuse: Reuse
    block_bytes: int
    reader: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class Order:
    """`source` sends these to `target`; no target: its own are one too many."""

    source: str
    target: str
    tenant: str
    keys: bytes


@dataclass(slots=True)
class _Wish:
    """One stretch at one site where it does not lie."""

    tenant: str
    keys: bytes
    size_bytes: int
    saved_s: float = 0.0  # faded to `at_s`
    at_s: float = 0.0
    wished_s: float = math.inf  # since when it is worth it, without a break


@dataclass(slots=True)
class _Copy:
    tenant: str
    keys: bytes
    used_s: float


V = TypeVar("V")
_Name = tuple[bytes, str]  # key of the stretch's last block, id of the site


class Balancer:
    """Notes what plans fetch; `orders` says what to do about it now."""

    def __init__(self, transfers: TransferPredictor, tier: str = "dram") -> None:
        """`tier`: the one of sites."""
        self._transfers = transfers
        self.tier = tier
        self._wishes: OrderedDict[_Name, _Wish] = OrderedDict()
        self._copies: OrderedDict[_Name, _Copy] = OrderedDict()
        self._resting: OrderedDict[_Name, float] = OrderedDict()
        self._budget_s = BURST_S
        self._at_s = 0.0
        self.proposed = 0
        self.thinned = 0

    def note(self, fetch: Fetch, sites: Iterable[Site], now_s: float) -> None:
        """A plan was made."""
        site = _nearest(sites, fetch.spot)
        shown = 1.0 if fetch.reuse.load_s > fetch.reuse.compute_s else _HIDDEN_SHARE
        left = _SPANS_MAX
        for step in fetch.steps:
            end = min(step.end, fetch.reuse.blocks)
            if step.block_s == 0.0 or end <= step.start or left <= 0:
                continue
            lead_s = step.lead_s * SPAN / (end - step.start)
            first = -(-step.start // SPAN)
            for number in range(first, min(end // SPAN, first + left)):
                keys = fetch.keys[number * SPAN * KEY_BYTES : (number + 1) * SPAN * KEY_BYTES]
                left -= 1
                self._used(keys, step.owner, now_s)
                if site is not None and site.id != step.owner:
                    far_s = SPAN * step.block_s + lead_s
                    self._wish(fetch, site, keys, far_s, shown, now_s)

    def orders(
        self,
        sites: Iterable[Site],
        holders: Callable[[bytes], Sequence[Site]],
        now_s: float,
    ) -> list[Order]:
        """What to do now. `holders`: the sites where all of these blocks lie."""
        self._budget_s = min(BURST_S, self._budget_s + SENDING_SHARE * (now_s - self._at_s))
        self._at_s = now_s
        by_id = {site.id: site for site in sites}
        orders = self._thin(by_id, holders, now_s)
        for name, wish in list(self._wishes.items()):
            site = by_id.get(name[1])
            if site and _faded(wish, now_s) < _WISH_MIN_S:
                wish.wished_s = math.inf
                continue
            sources = holders(wish.keys) if site else ()
            if site is None or any(source.id == site.id for source in sources):
                del self._wishes[name]
                continue
            if len(orders) < ORDERS_MAX and site.room >= ROOM_MIN:
                order = self._copy(name, wish, site, sources, now_s)
                orders += [order] if order else []
        return orders

    def stats(self) -> dict[str, int]:
        return {
            "balance_wishes": len(self._wishes),
            "balance_copies": len(self._copies),
            "balance_proposed": self.proposed,
            "balance_thinned": self.thinned,
        }

    def check(self) -> None:
        assert self._budget_s <= BURST_S
        for kept in (self._wishes, self._copies, self._resting):
            assert len(kept) <= _KEPT_MAX

    # -- parts

    def _used(self, keys: bytes, owner: str, now_s: float) -> None:
        copy = self._copies.get((keys[-KEY_BYTES:], owner))
        if copy:
            copy.used_s = now_s

    def _wish(
        self, fetch: Fetch, site: Site, keys: bytes, far_s: float, shown: float, now_s: float
    ) -> None:
        size_bytes = SPAN * fetch.block_bytes
        apart = distance(site.spot, fetch.spot)
        near_s = 0.0  # in the reader's own pool
        if site.id != fetch.reader:
            near_s = self._transfers.seconds(site.id, fetch.reader, self.tier, apart, size_bytes)
        saved_s = shown * (far_s - near_s)
        name = (keys[-KEY_BYTES:], site.id)
        if saved_s <= 0 or name in self._copies or now_s < self._resting.get(name, 0.0):
            return
        wish = self._wishes.get(name)
        if wish is None:
            wish = _Wish(fetch.tenant, keys, size_bytes, at_s=now_s)
            _keep(self._wishes, name, wish)
        else:
            self._wishes.move_to_end(name)
        wish.saved_s = _faded(wish, now_s) + saved_s
        wish.at_s = now_s

    def _copy(
        self, name: _Name, wish: _Wish, site: Site, sources: Sequence[Site], now_s: float
    ) -> Order | None:
        """An order, once the wish is old enough and there is time on the link."""
        if not sources:
            wish.wished_s = math.inf
            return None
        took_s, source = min(
            (self._sending_s(source, site, wish.size_bytes), source.id) for source in sources
        )
        if _faded(wish, now_s) * math.log(2) < WORTH * took_s:
            wish.wished_s = math.inf
            return None
        wish.wished_s = min(wish.wished_s, now_s)
        if now_s - wish.wished_s < HOLD_S or self._budget_s < took_s:
            return None
        self._budget_s -= took_s
        self.proposed += 1
        del self._wishes[name]
        _keep(self._copies, name, _Copy(wish.tenant, wish.keys, now_s))
        return Order(source, site.id, wish.tenant, wish.keys)

    def _sending_s(self, source: Site, target: Site, size_bytes: int) -> float:
        apart = distance(source.spot, target.spot)
        return self._transfers.seconds(source.id, target.id, self.tier, apart, size_bytes)

    def _thin(
        self,
        sites: dict[str, Site],
        holders: Callable[[bytes], Sequence[Site]],
        now_s: float,
    ) -> list[Order]:
        """Copies that nobody reads. The last one that is known of is left alone."""
        orders: list[Order] = []
        for name, copy in list(self._copies.items()):
            if name[1] not in sites:
                del self._copies[name]
            elif now_s - copy.used_s >= COLD_S and len(orders) < ORDERS_MAX:
                del self._copies[name]
                _keep(self._resting, name, now_s + REST_S)
                there = {site.id for site in holders(copy.keys)}
                if name[1] in there and len(there) > 1:
                    self.thinned += 1
                    orders.append(Order(name[1], "", copy.tenant, copy.keys))
        return orders


def _nearest(sites: Iterable[Site], spot: Spot) -> Site | None:
    """Of those with room, the nearest; of equals the one with most room."""
    able = [site for site in sites if site.room >= ROOM_MIN]
    return min(
        able, key=lambda s: (RANKS[distance(s.spot, spot)], -round(s.room, 1), s.id), default=None
    )


def _faded(wish: _Wish, now_s: float) -> float:
    return wish.saved_s * math.exp2(-(now_s - wish.at_s) / HALF_LIFE_S)


def _keep(kept: OrderedDict[_Name, V], name: _Name, value: V) -> None:
    if len(kept) >= _KEPT_MAX:
        kept.popitem(last=False)
    kept[name] = value
