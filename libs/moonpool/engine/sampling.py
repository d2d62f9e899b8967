"""How one token is chosen from logits. Pure: the same logits, history and seed give the same token.

Random numbers come from a counter-based generator keyed by (seed, index of the output token), so a
draw depends neither on the batch nor on the instance nor on what was drawn before.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from moonpool.engine.base import Sampled, SampleSpec
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.tokens import TokenLogprobs

_UINT64_MASK = (1 << 64) - 1


def sample(
    logits: torch.Tensor, specs: Sequence[SampleSpec], eos_token_ids: Sequence[int]
) -> list[Sampled]:
    """One token per row of `logits` [specs, vocab_size], of any float type."""
    greedy = torch.argmax(logits, dim=-1).tolist()
    sampled = []
    for row, spec in enumerate(specs):
        token = greedy[row]
        if _changes_greedy(spec, eos_token_ids):
            token = choose(logits[row].float(), spec, eos_token_ids)
        sampled.append(Sampled(token, _logprobs(logits[row], token, spec.params.logprobs)))
    return sampled


def _changes_greedy(spec: SampleSpec, eos_token_ids: Sequence[int]) -> bool:
    params = spec.params
    return (
        params.temperature > 0
        or params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
        or bool(_forbidden(spec, eos_token_ids))
    )


def choose(logits: torch.Tensor, spec: SampleSpec, eos_token_ids: Sequence[int]) -> int:
    """Penalties, temperature, top-k, top-p, min-p, then the draw, on float32 [vocab_size]."""
    params = spec.params
    scores = penalize(logits, spec)
    forbidden = _forbidden(spec, eos_token_ids)
    if forbidden:
        scores = scores.clone()
        scores[torch.tensor(forbidden, device=scores.device)] = -math.inf
    if params.temperature <= 0:
        return int(torch.argmax(scores))
    ids, probabilities = candidates(scores, params)
    return int(ids[draw(probabilities, params.seed, spec.index)])


def _forbidden(spec: SampleSpec, eos_token_ids: Sequence[int]) -> list[int]:
    """Tokens that would end the answer before `min_tokens`."""
    if spec.index >= spec.params.min_tokens:
        return []
    return [*eos_token_ids, *spec.params.stop_token_ids]


def penalize(logits: torch.Tensor, spec: SampleSpec) -> torch.Tensor:
    """Logits after penalties; the argument itself when there are none.

    Repetition divides positive and multiplies negative logits of every token of prompt and output;
    presence and frequency are taken off tokens of the output.
    """
    params = spec.params
    if params.repetition_penalty != 1:
        seen = torch.from_numpy(np.unique(spec.history).astype(np.int64)).to(logits.device)
        values = logits[seen]
        factor = params.repetition_penalty
        values = torch.where(values > 0, values / factor, values * factor)
        logits = logits.index_copy(0, seen, values)
    output = spec.history[spec.output_start :]
    if (params.presence_penalty or params.frequency_penalty) and len(output):
        ids, counts = np.unique(output, return_counts=True)
        amount = params.presence_penalty + params.frequency_penalty * counts
        off = torch.from_numpy(amount.astype(np.float32)).to(logits.device)
        logits = logits.index_add(
            0, torch.from_numpy(ids.astype(np.int64)).to(logits.device), off, alpha=-1
        )
    return logits


def candidates(
    scores: torch.Tensor, params: SamplingParams
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tokens that may be drawn, likeliest first, and their probabilities (sum 1).

    Each filter sees what the one before left: top-k, then top-p over the renormalised rest, then
    min-p. At least the likeliest token remains.
    """
    scaled = scores.double() / params.temperature
    count = scaled.shape[0]
    if 0 < params.top_k < count:
        values, ids = torch.topk(scaled, params.top_k)
    elif params.top_p < 1 or params.min_p > 0:
        values, ids = torch.sort(scaled, descending=True, stable=True)
    else:
        values, ids = scaled, torch.arange(count, device=scaled.device)
    weights = torch.softmax(values, dim=-1).cpu().numpy()
    tokens = ids.cpu().numpy()
    keep = len(weights)
    if params.top_p < 1:
        before = np.cumsum(weights) - weights
        keep = max(1, int(np.count_nonzero(before < params.top_p)))
    if params.min_p > 0:
        likely = int(np.count_nonzero(weights[:keep] >= params.min_p * weights[0]))
        keep = max(1, likely)
    kept = weights[:keep]
    return tokens[:keep], kept / kept.sum()


def draw(probabilities: NDArray[np.float64], seed: int, index: int) -> int:
    """Position drawn by the one uniform number that belongs to (seed, index)."""
    key = np.array([seed & _UINT64_MASK, index], dtype=np.uint64)
    uniform = np.random.Generator(np.random.Philox(key=key)).random()
    total = np.cumsum(probabilities)
    place = int(np.searchsorted(total, uniform * total[-1], side="right"))
    return min(place, len(probabilities) - 1)


def _logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs | None:
    if count < 0:
        return None
    logs = torch.log_softmax(logits.float(), dim=-1)
    if count == 0:
        return TokenLogprobs(float(logs[token]))
    top = torch.topk(logs, min(count, logs.shape[0]))
    return TokenLogprobs(
        float(logs[token]), tuple(top.indices.tolist()), tuple(top.values.tolist())
    )
