"""How one token is chosen from logits. Pure: the same logits, history and seed give the same token.

Random numbers come from a counter-based generator keyed by (seed, index of the output token), so a
draw depends neither on the batch nor on the instance nor on what was drawn before. Each token of
the vocabulary has its own number: logits that differ by rounding, as they do between batches, then
draw the same token but in the rarest case.
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
_FIRST_LOOK = 1024  # likeliest tokens that nearly always hold all of `top_p`
_NEGLIGIBLE = 23.0  # tokens this far below the likeliest (1e-10) are never drawn


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
    return race(*candidates(scores, params), params.seed, spec.index)


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
    """Tokens that may be drawn and their probabilities (sum 1), in no particular order.

    Each filter sees what the one before left: top-k, then top-p over the renormalised rest, then
    min-p. At least the likeliest token remains.
    """
    scaled = scores / params.temperature
    count = scaled.shape[0]
    if not 0 < params.top_k < count and params.top_p >= 1 and params.min_p <= 0:
        ids = torch.nonzero(scaled >= scaled.max() - _NEGLIGIBLE)[:, 0]
        return ids.cpu().numpy(), _softmax(scaled[ids])
    if 0 < params.top_k < count:
        values, ids = torch.topk(scaled, params.top_k)
        weights = _softmax(values)
    else:
        values, ids = torch.topk(scaled, min(_FIRST_LOOK, count))
        total = torch.logsumexp(scaled.double(), dim=-1)
        weights = torch.exp(values.double() - total).cpu().numpy()
        if weights.sum() < params.top_p and weights[-1] >= params.min_p * weights[0]:
            values, ids = torch.sort(scaled, descending=True, stable=True)
            weights = _softmax(values)
    keep = len(weights)
    if params.top_p < 1:
        before = np.cumsum(weights) - weights
        keep = max(1, int(np.count_nonzero(before < params.top_p)))
    if params.min_p > 0:
        keep = max(1, int(np.count_nonzero(weights[:keep] >= params.min_p * weights[0])))
    kept = weights[:keep]
    return ids[:keep].cpu().numpy(), kept / kept.sum()


def _softmax(values: torch.Tensor) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = torch.softmax(values.double(), dim=-1).cpu().numpy()
    return weights


def race(ids: NDArray[np.int64], probabilities: NDArray[np.float64], seed: int, index: int) -> int:
    """The id drawn by the numbers that belong to (seed, index): each token arrives after an
    exponential time of rate p, and the first to arrive wins, which has probability p."""
    key = np.array([seed & _UINT64_MASK, index], dtype=np.uint64)
    raw = np.asarray(np.random.Philox(key=key).random_raw(int(ids.max()) + 1))[ids]
    uniform = ((raw >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1)
    with np.errstate(divide="ignore"):
        arrival = -np.log(uniform) / probabilities
    return int(ids[np.argmin(arrival)])


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
