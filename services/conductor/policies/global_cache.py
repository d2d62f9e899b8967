"""Global cache-aware: the paper's Algorithm 1.

Each prefill is tried with its own prefix, or, where the longest prefix anywhere is longer than its
own by more than the balancing threshold (a ratio), with that one fetched from its holder. Fetching
comes before computing, as in the algorithm: no overlap is assumed. The earliest first token wins,
the first of equals.
"""

import math

from moonpool.messages.ids import OwnerId
from services.conductor.policies.base import Choice, View
from services.conductor.policies.pairing import with_least_loaded_decode
from services.conductor.prefills import Candidate, PrefillOption
from services.conductor.reuse import Reuse, Step
from services.conductor.topology import distance

BALANCING_THRESHOLD = 1.0  # best prefix over own prefix; never published, >= 1


class GlobalPolicy:
    """Algorithm 1 with the threshold as a ratio."""

    def __init__(self, threshold: float = BALANCING_THRESHOLD) -> None:
        """ValueError for a threshold below 1."""
        if not threshold >= 1.0:
            raise ValueError(f"a balancing threshold is a ratio of at least 1, not {threshold}")
        self._threshold = threshold

    def choose(self, view: View) -> Choice | None:
        if not view.candidates:
            return None
        turn = view.rotation % len(view.candidates)
        turned = [*view.candidates[turn:], *view.candidates[:turn]]
        best = max(turned, key=lambda each: each.have_blocks)
        options = (self._option(view, each, best) for each in turned)
        return with_least_loaded_decode(view, min(options, key=lambda option: option.ttft_s))

    def _option(self, view: View, candidate: Candidate, best: Candidate) -> PrefillOption:
        """The branch of the algorithm that holds for this candidate."""
        own, most = candidate.have_blocks, best.have_blocks
        ratio = most / own if own else (math.inf if most else 1.0)
        if ratio <= self._threshold:
            return view.with_own_prefix(candidate)
        source, target = best.member, candidate.member
        size_bytes = (most - own) * view.demand.block_bytes
        apart = distance(source.spot, target.spot)
        load_s = view.know.transfers.seconds(source.id, target.id, "hbm", apart, size_bytes)
        load_s += view.know.senders.wait_s(source.id, view.now_s)
        compute_s = view.computed_s(candidate, most)
        steps = [Step(0, own, OwnerId(target.id), "hbm", 0.0, 0.0)] if own else []
        block_s = load_s / (most - own)
        steps.append(Step(own, most, OwnerId(source.id), "hbm", block_s, 0.0))
        reuse = Reuse(most, most - own, load_s, compute_s, load_s + compute_s)
        return view.option(candidate, reuse, steps)
