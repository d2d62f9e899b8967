"""Sources: from whom one instance would read each segment of a prefix, and at what price."""

from collections.abc import Callable, Sequence

from moonpool.messages.ids import OwnerId
from services.conductor.bandwidth import TransferPredictor
from services.conductor.match import Match
from services.conductor.places import Place
from services.conductor.reuse import Step
from services.conductor.topology import Spot, distance

_LOOKED_MAX = 32  # places of one segment that are looked at
_SHORTLIST_MAX = (
    4  # of them, best by tier and idleness; one on the reader's own host or rack besides
)
_BLOCK_S_MIN = 1e-9  # a move is never free: 0 means "own block"
# Best places, and the best one per host and per (zone, rack).
_Shortlist = tuple[list[Place], dict[str, Place], dict[tuple[str, str], Place]]
_TIER_ORDER = {"hbm": 0, "dram": 0, "nvme": 1, "oss": 2}


class Sources:
    """The holders of one match, for one plan."""

    def __init__(
        self,
        match: Match,
        places_of: Callable[[int], Sequence[Place]],
        spot_of: Callable[[str], Spot],
        wait_s: Callable[[str], float],
        transfers: TransferPredictor,
        block_bytes: int,
        rotation: int,
    ) -> None:
        self._match = match
        self._places_of = places_of
        self._spot_of = spot_of
        self._wait_s = wait_s
        self._transfers = transfers
        self._block_bytes = block_bytes
        self._rotation = rotation
        self._shortlists: dict[int, _Shortlist] = {}

    def steps(self, target: str, spot: Spot, own_bit: int) -> list[Step]:
        """How `target` would read the whole match: its own blocks where it has them, else the
        source that is done first; it stays with one source while that holds the next segment."""
        steps: list[Step] = []
        for segment in self._match.segments:
            if segment.mask & own_bit:
                steps.append(Step(segment.start, segment.end, OwnerId(target), "hbm", 0.0, 0.0))
                continue
            shortlist, by_host, by_rack = self._shortlist(segment.mask & ~own_bit)
            near = by_host.get(spot.host) or by_rack.get((spot.zone, spot.rack))
            best: Step | None = None
            best_s = 0.0
            for place in (near, *shortlist) if near else shortlist:
                step = self._step(segment.start, segment.end, place, target, spot, steps)
                took_s = step.lead_s + (step.end - step.start) * step.block_s
                if best is None or took_s < best_s:
                    best, best_s = step, took_s
            if best is None:
                break
            steps.append(best)
        return steps

    def _step(
        self, start: int, end: int, place: Place, target: str, spot: Spot, before: list[Step]
    ) -> Step:
        owner, tier, blocks = place.owner, place.tier, end - start
        apart = distance(self._spot_of(owner), spot)
        size_bytes = blocks * self._block_bytes
        lead_s, moved_s = self._transfers.lead_and_all(owner, target, tier, apart, size_bytes)
        block_s = max(_BLOCK_S_MIN, (moved_s - lead_s) / blocks)
        if before and before[-1].owner == owner and before[-1].tier == tier:
            lead_s = 0.0  # it goes on sending
        else:
            lead_s += self._wait_s(owner)
        return Step(start, end, owner, tier, block_s, lead_s)

    def _shortlist(self, mask: int) -> _Shortlist:
        known = self._shortlists.get(mask)
        if known is not None:
            return known
        places = list(self._places_of(mask))
        turn = self._rotation % len(places) if places else 0
        places = (places[turn:] + places[:turn])[:_LOOKED_MAX]
        places.sort(key=lambda p: (_TIER_ORDER.get(p.tier, 3), self._wait_s(p.owner)))
        by_host: dict[str, Place] = {}
        by_rack: dict[tuple[str, str], Place] = {}
        for place in places:
            spot = self._spot_of(place.owner)
            by_host.setdefault(spot.host, place)
            if spot.rack:
                by_rack.setdefault((spot.zone, spot.rack), place)
        known = self._shortlists[mask] = (places[:_SHORTLIST_MAX], by_host, by_rack)
        return known
