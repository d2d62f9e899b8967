"""What the balancer sees of the mesh: store nodes as sites, and who holds a stretch."""

from collections.abc import Callable, Sequence

from moonpool.messages.plan import PlanRequest
from services.conductor.balance import Fetch, Site
from services.conductor.demand import Demand
from services.conductor.fleet import Fleet, Member
from services.conductor.holdings import Holdings
from services.conductor.policies import Choice

TIER = "dram"


def sites_of(fleet: Fleet) -> list[Site]:
    """Nodes that can take copies, and have said how full they are."""
    return [_site(m) for m in fleet.of_roles(("store",)) if m.can_serve() and m.load]


def _site(member: Member) -> Site:
    used, total = member.load.tiers.get(TIER, (0, 0)) if member.load else (0, 0)
    return Site(member.id, member.spot, max(0.0, 1.0 - used / total) if total else 0.0)


def holders_of(
    holdings: Holdings, sites: Sequence[Site], tier: str = TIER
) -> Callable[[bytes], list[Site]]:
    """Asked for packed keys: the sites that hold all of them."""
    by_id = {site.id: site for site in sites}

    def holders(keys: bytes) -> list[Site]:
        there = -1
        for mask in holdings.masks(keys):
            there &= mask
            if not there:
                return []
        places = holdings.index.places.of(there)
        return [by_id[p.owner] for p in places if p.tier == tier and p.owner in by_id]

    return holders


def fetch_of(request: PlanRequest, demand: Demand, choice: Choice) -> Fetch:
    """What a plan fetches."""
    option = choice.prefill
    return Fetch(
        request.tenant,
        request.keys,
        option.steps,
        option.reuse,
        demand.block_bytes,
        option.member.id,
        option.member.spot,
    )
