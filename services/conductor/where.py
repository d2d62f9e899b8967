"""Where: who holds how much of a prompt, for routers that are not ours. Looks at every block."""

from collections import Counter

from moonpool.kv import KEY_BYTES
from moonpool.messages.errors import CallerError
from moonpool.messages.where import Holder, WhereReply, WhereRequest
from services.conductor.fleet import Fleet
from services.conductor.holdings import Holdings
from services.conductor.places import bits_of

KEYS_MAX = 32_768  # of one question: what half a message holds


def where(request: WhereRequest, fleet: Fleet, holdings: Holdings, conductor: str) -> WhereReply:
    """CallerError when `keys` are not whole keys, or too many."""
    keys = request.keys
    if len(keys) % KEY_BYTES or not keys:
        raise CallerError(f"{len(keys)} bytes of keys are no whole number of keys above 0")
    blocks = len(keys) // KEY_BYTES
    if blocks > KEYS_MAX:
        raise CallerError(f"{blocks} keys in one question; at most {KEYS_MAX} are answered")
    held: Counter[int] = Counter()
    for mask, count in Counter(holdings.masks(keys)).items():
        for bit in bits_of(mask):
            held[bit] += count
    leading = holdings.match(keys, exact=True).lengths()
    holders = []
    for place in holdings.index.places.of(sum(held)):
        member = fleet.get(place.owner)
        if member is None:
            continue
        holders.append(
            Holder(
                owner=place.owner,
                role=member.role,
                host=member.host,
                tier=place.tier,
                prefix_blocks=leading.get(place.bit, 0),
                blocks=held[place.bit],
                url=member.registration.url,
            )
        )
    holders.sort(key=lambda h: (-h.prefix_blocks, -h.blocks, h.owner, h.tier))
    return WhereReply(conductor, blocks, tuple(holders))
