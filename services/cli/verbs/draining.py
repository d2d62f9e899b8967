"""Waiting until a store node that drains has left, and saying what it gave away."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moonpool.client import NodeCalls
    from moonpool.messages.store import StatsReply

LOOK_S = 0.25
GRACE_S = 90.0  # beyond its own deadline: for its readers, and for what sinks to lower tiers


async def drain(calls: "NodeCalls", node: str, within_s: float, *, wait: bool) -> int:
    """0 when it has given all away and is gone, or was told when `wait` is False; 1 when it kept
    something, or is still there at the end."""
    from moonpool.bus import NoResponder, RequestTimeout

    await calls.drain(node, within_s)
    if not wait:
        print(f"{node} is draining")
        return 0
    loop = asyncio.get_running_loop()
    ends_s, said, is_kept = loop.time() + within_s + GRACE_S, "", True
    while loop.time() < ends_s:
        try:
            stats = await calls.stats(node)
            said, is_kept = as_line(stats) or said, has_kept(stats)
        except NoResponder:
            print(f"{node} has left: {said or 'what it gave away is not known'}")
            return int(is_kept)
        except RequestTimeout:
            pass  # it is busy; asked again below
        await asyncio.sleep(LOOK_S)
    print(f"{node} is still draining: {said}")
    return 1


def has_kept(stats: "StatsReply") -> bool:
    """Whether anything is not given away: known once the node is done with it."""
    counters = stats.counters
    kept = counters.get("drain_left", 0) + counters.get("drain_failed", 0)
    return kept > 0 or not counters.get("drain_over", 0)


def as_line(stats: "StatsReply") -> str:
    """How far it is."""
    counters = stats.counters
    if "drain_left" not in counters:
        return ""
    return (
        f"{counters.get('drain_moved', 0)} objects given away, {counters['drain_left']} left, "
        f"{counters.get('drain_failed', 0)} not taken by anybody"
    )
