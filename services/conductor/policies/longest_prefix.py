"""Longest prefix: whoever has most of the prompt, however long its queue."""

from services.conductor.policies.base import Choice, View
from services.conductor.policies.pairing import with_least_loaded_decode


class LongestPrefixPolicy:
    """Most own blocks; among equals the shortest queue."""

    def choose(self, view: View) -> Choice | None:
        if not view.candidates:
            return None
        turn = view.rotation % len(view.candidates)
        turned = [*view.candidates[turn:], *view.candidates[:turn]]
        candidate = min(turned, key=lambda each: (-each.have_blocks, each.queue_s))
        return with_least_loaded_decode(view, view.with_own_prefix(candidate))
