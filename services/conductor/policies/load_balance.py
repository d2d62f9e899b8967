"""Load balancing: the prefill with the least work waiting; where the KV lies does not matter."""

from services.conductor.policies.base import Choice, View
from services.conductor.policies.pairing import with_least_loaded_decode


class LoadBalancePolicy:
    """Least seconds of queue; equals take turns."""

    def choose(self, view: View) -> Choice | None:
        if not view.candidates:
            return None
        turn = view.rotation % len(view.candidates)
        turned = [*view.candidates[turn:], *view.candidates[:turn]]
        candidate = min(turned, key=lambda each: each.queue_s)
        return with_least_loaded_decode(view, view.with_own_prefix(candidate))
