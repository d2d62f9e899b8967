"""The floor: what no scheduler can go below while one prefill computes a whole prompt.

Every prompt begins when it arrives, and every full block that any earlier prompt had is in the
prefill's own pool, even where that earlier one is still being computed. So there is no waiting, no
fetching, no eviction, and each prefill is there as often as it is needed. Neither the number of
prefills nor the speed of the trace changes it. Nor does the order of prompts: a block that a later
prompt computes first takes its seconds after this one arrived all the same.

A policy that is less than a tenth above the floor leaves no tenth to gain.
"""

from collections.abc import Iterable

from services.conductor.simulate.serve.machine import Machine
from services.conductor.simulate.serve.outcome import mean, quantile
from services.conductor.simulate.serve.traffic import Ask


def floor_ttfts_s(asks: Iterable[Ask], machine: Machine) -> list[float]:
    """Seconds to the first token of each request, in their order, noise left out."""
    seen: set[int] = set()
    ttfts_s = []
    for ask in asks:
        leading = next((at for at, b in enumerate(ask.blocks) if b not in seen), len(ask.blocks))
        seen.update(ask.blocks)
        usable = min(leading, (ask.prompt_tokens - 1) // machine.block_tokens)
        reused_s = machine.prefill_s(ask.prompt_tokens, usable * machine.block_tokens)
        # Seconds bend down as more is reused, so the least lies at one of the ends.
        ttfts_s.append(min(reused_s, machine.prefill_s(ask.prompt_tokens, 0)))
    return ttfts_s


def floor_summary(asks: Iterable[Ask], machine: Machine) -> dict[str, float]:
    """Named as in the summary of a run."""
    ttfts_s = sorted(floor_ttfts_s(asks, machine))
    figures = {"ttft_mean_s": mean(ttfts_s)}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        figures[f"ttft_{name}_s"] = quantile(ttfts_s, share)
    return {name: round(value, 5) for name, value in figures.items()}
