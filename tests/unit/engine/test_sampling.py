"""Sampling: every parameter does what it says, and a draw depends on (seed, index) alone."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from moonpool.engine import SampleSpec
from moonpool.engine.sampling import candidates, penalize, race, sample
from moonpool.engine.torch_engine import TorchEngine
from moonpool.messages.sampling import SamplingParams
from tests.support.engine_runs import Run, run_all

EOS = (3,)
NOTHING = np.array([], dtype=np.int32)


def spec(params: SamplingParams, history: list[int] | None = None, start: int = 0, index: int = 0):
    return SampleSpec(params, np.array(history or [0], dtype=np.int32), start, index)


def tokens(logits: list[float], params: SamplingParams, draws: int) -> np.ndarray:
    """How often each token comes out over `draws` indexes."""
    row = torch.tensor(logits).expand(draws, -1)
    specs = [spec(params, index=i) for i in range(draws)]
    drawn = [s.token for s in sample(row, specs, EOS)]
    return np.bincount(drawn, minlength=len(logits))


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    assert tokens([1.0, 5.0, 5.0, 2.0], SamplingParams(temperature=0), 1)[1] == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax_at_the_given_temperature(temperature: float) -> None:
    logits, draws = [2.0, 1.0, 0.0, -1.0, 0.5], 4000
    counts = tokens(logits, SamplingParams(temperature=temperature, seed=11), draws)
    weights = np.exp(np.array(logits) / temperature)
    expected = draws * weights / weights.sum()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 20  # 4 degrees of freedom: p < 0.0005


def test_top_k_leaves_the_k_likeliest() -> None:
    counts = tokens([0.0, 0.3, 0.2, 0.1], SamplingParams(top_k=2, seed=1), 300)
    assert (counts > 0).tolist() == [False, True, True, False]


def test_top_k_beyond_the_vocabulary_changes_nothing() -> None:
    plain = tokens([0.0, 0.3, 0.2, 0.1], SamplingParams(seed=1), 100)
    assert (tokens([0.0, 0.3, 0.2, 0.1], SamplingParams(seed=1, top_k=9), 100).sum()) == plain.sum()


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = [math.log(p) for p in (0.1, 0.5, 0.3, 0.1)]
    assert candidates(torch.tensor(logits), SamplingParams(top_p=0.5))[0].tolist() == [1]
    assert candidates(torch.tensor(logits), SamplingParams(top_p=0.79))[0].tolist() == [1, 2]
    assert len(candidates(torch.tensor(logits), SamplingParams(top_p=0.95))[0]) == 4


def test_min_p_drops_what_is_too_far_below_the_likeliest() -> None:
    logits = [math.log(p) for p in (0.1, 0.5, 0.3, 0.1)]
    kept, weights = candidates(torch.tensor(logits), SamplingParams(min_p=0.4))
    assert kept.tolist() == [1, 2]
    assert weights == pytest.approx([0.625, 0.375])


def test_filters_apply_one_after_the_other() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    kept, _ = candidates(torch.tensor(logits), SamplingParams(top_k=3, top_p=0.75))
    assert kept.tolist() == [0, 1]  # 0.44 + 0.33 of the three that top-k left


def test_a_tiny_temperature_is_greedy() -> None:
    assert tokens([1.0, 1.2, 1.1], SamplingParams(temperature=1e-4), 50)[1] == 50


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    given = spec(SamplingParams(repetition_penalty=2.0), history=[0, 1, 1], start=2)
    assert penalize(torch.tensor([4.0, -3.0, 5.0]), given).tolist() == [2.0, -6.0, 5.0]


def test_presence_and_frequency_look_at_the_output_only() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    given = spec(params, history=[0, 0, 1, 1, 2], start=2)
    assert penalize(torch.tensor([5.0, 5.0, 5.0, 5.0]), given).tolist() == [5.0, 3.0, 3.5, 5.0]
    fresh = spec(params, history=[0, 1], start=2)
    assert penalize(torch.tensor([5.0, 5.0]), fresh).tolist() == [5.0, 5.0]


def test_penalties_leave_the_models_logits_as_they_were() -> None:
    logits = torch.tensor([[4.0, -3.0, 5.0]])
    params = SamplingParams(temperature=0, repetition_penalty=2.0, presence_penalty=1, min_tokens=9)
    sample(logits, [spec(params, history=[0, 1, 2], start=1)], (2,))
    assert logits.tolist() == [[4.0, -3.0, 5.0]]


def test_no_end_token_before_min_tokens() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 9.0, 3.0]])
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(4,))
    assert sample(logits, [spec(params, index=1)], EOS)[0].token == 2
    assert sample(logits, [spec(params, index=2)], EOS)[0].token == 3
    hot = SamplingParams(temperature=2.0, min_tokens=2, stop_token_ids=(4,))
    drawn = {sample(logits, [spec(hot, index=i % 2)], EOS)[0].token for i in range(40)}
    assert not drawn & {3, 4}


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    params = SamplingParams(temperature=0.3, repetition_penalty=9.0, logprobs=2, seed=5)
    got = sample(logits, [spec(params, history=[1])], EOS)[0]
    expected = torch.log_softmax(logits[0], dim=-1).tolist()
    assert got.logprobs is not None
    assert got.logprobs.chosen == pytest.approx(expected[got.token])
    assert got.logprobs.top_ids == (1, 2)
    assert got.logprobs.top == pytest.approx((expected[1], expected[2]))
    chosen_only = sample(logits, [spec(SamplingParams(temperature=0, logprobs=0))], EOS)[0]
    assert chosen_only.logprobs is not None
    assert chosen_only.logprobs.top_ids == ()


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    ids, flat = np.arange(1000), np.full(1000, 0.001)
    drawn = {(seed, i): race(ids, flat, seed, i) for seed in range(6) for i in range(6)}
    assert len(set(drawn.values())) > 30
    assert all(race(ids, flat, *at) == token for at, token in reversed(drawn.items()))
    assert race(ids, flat, -1, 0) == race(ids, flat, 2**64 - 1, 0)  # any 64-bit seed will do


def test_a_draw_does_not_depend_on_the_order_of_candidates() -> None:
    ids, weights = np.array([4, 9, 2]), np.array([0.2, 0.5, 0.3])
    for index in range(50):
        assert race(ids, weights, 1, index) == race(ids[::-1], weights[::-1], 1, index)


def test_logits_that_differ_by_rounding_draw_the_same_token() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 2, (200, 5000)).astype(np.float32))
    noisy = logits + torch.from_numpy(rng.normal(0, 1e-5, logits.shape).astype(np.float32))
    specs = [spec(SamplingParams(seed=3), index=i) for i in range(200)]
    first, second = sample(logits, specs, EOS), sample(noisy, specs, EOS)
    assert [s.token for s in first] == [s.token for s in second]


def test_top_p_beyond_the_first_look_still_finds_its_set() -> None:
    flat = torch.zeros(5000)
    assert len(candidates(flat, SamplingParams(top_p=0.5))[0]) in (2500, 2501)
    assert len(candidates(flat, SamplingParams(min_p=0.5))[0]) == 5000
    assert len(candidates(flat, SamplingParams(min_p=0.5, top_p=0.1))[0]) in (500, 501)


def test_draws_of_one_seed_are_uniform_over_indexes() -> None:
    ids, flat = np.arange(10), np.full(10, 0.1)
    counts = np.bincount([race(ids, flat, 42, i) for i in range(2000)], minlength=10)
    assert float(((counts - 200) ** 2 / 200).sum()) < 28  # 9 degrees of freedom: p < 0.001


def test_same_seed_same_text_alone_and_in_any_batch(
    engines: Callable[[str], TorchEngine],
) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 256, n, dtype=np.int32) for n in (20, 33, 5)]
    params = [SamplingParams(temperature=1.2, top_p=0.9, seed=9 + i) for i in range(3)]
    alone = []
    for text, given in zip(texts, params, strict=True):
        run = Run(text, [0, 1, 2, 3], given)
        run_all(engines("qwen3"), [run], 8, 512)
        alone.append(run.output)
    runs = [
        Run(text, list(range(8 * i, 8 * i + 4)), given)
        for i, (text, given) in enumerate(zip(texts, params, strict=True))
    ]
    run_all(engines("qwen3"), runs[::-1], 8, 6)
    assert [run.output for run in runs] == alone
    half = Run(np.concatenate((texts[0], alone[0][:4])).astype(np.int32), [5, 6, 7, 8], params[0])
    half.output_start = len(texts[0])  # an answer taken up in the middle by another instance
    run_all(engines("qwen3"), [half], 4, 512)
    assert half.output == alone[0][4:]
