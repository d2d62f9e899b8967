"""Local cache-aware: a prefill reuses its own pool and nobody else's.

`LocalNaivePolicy` follows the rule of thumb of well-known routers: go where enough of the prompt
is, unless load has got out of balance. `LocalPolicy` is the honest baseline: it predicts.
"""

from services.conductor.policies.base import Choice, View
from services.conductor.policies.pairing import with_least_loaded_decode

MATCH_RATE_MIN = 0.3  # share of the prompt that makes a prefix worth going to
IMBALANCE_S = 10.0  # queues this far apart, and
IMBALANCE_RATIO = 1.5  # the longest longer than the shortest by this factor: balance instead


class LocalNaivePolicy:
    """Best match when it is good enough, else the shortest queue."""

    def choose(self, view: View) -> Choice | None:
        if not view.candidates:
            return None
        turn = view.rotation % len(view.candidates)
        turned = [*view.candidates[turn:], *view.candidates[:turn]]
        shortest = min(turned, key=lambda each: each.queue_s)
        longest_s = max(each.queue_s for each in turned)
        match = min(turned, key=lambda each: (-each.have_blocks, each.queue_s))
        unbalanced = (
            longest_s - shortest.queue_s > IMBALANCE_S
            and longest_s > IMBALANCE_RATIO * shortest.queue_s
        )
        wanted = match.have_blocks > MATCH_RATE_MIN * view.demand.blocks and not unbalanced
        candidate = match if wanted else shortest
        return with_least_loaded_decode(view, view.with_own_prefix(candidate))


class LocalPolicy:
    """Earliest first token, from own blocks alone."""

    def choose(self, view: View) -> Choice | None:
        if not view.candidates:
            return None
        turn = view.rotation % len(view.candidates)
        turned = [*view.candidates[turn:], *view.candidates[:turn]]
        options = map(view.with_own_prefix, turned)
        return with_least_loaded_decode(view, min(options, key=lambda option: option.ttft_s))
