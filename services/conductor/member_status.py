"""One member as `moonpool status` shows it."""

from msgspec import structs

from moonpool.messages.ids import OwnerId
from moonpool.messages.status import MemberStatus
from services.conductor.fleet import Member
from services.conductor.holdings import Holdings, StreamState


def member_status(member: Member, holdings: Holdings, now_s: float) -> MemberStatus:
    """What this conductor knows of it; samples of its last report left out."""
    owner, load = OwnerId(member.id), member.load
    if load:
        load = structs.replace(load, compute=[], transfers=[], steps=[])
    return MemberStatus(
        registration=member.registration,
        state=member.state,
        health=member.health.value,
        heard_ago_s=max(0.0, now_s - member.heard_s),
        mismatch=member.mismatch,
        load=load,
        blocks=holdings.blocks(owner),
        following=holdings.state(owner) is StreamState.FOLLOWING,
    )
