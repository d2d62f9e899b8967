"""Predictors: sane before anything was seen, close after, never absurd."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from services.conductor.bandwidth import TransferPredictor
from services.conductor.predict import Predictor, prefill_predictor, step_predictor
from services.conductor.topology import Distance

KIND = "prefill:ff"


def make_predictor() -> Predictor:
    return prefill_predictor()


def real_seconds(new: float, cached: float, speed: float = 1.0) -> float:
    """A machine as in the papers: a constant, a linear and a quadratic part."""
    return speed * (0.065 + 1.165e-4 * new + 7.13e-10 * new * (new + 2 * cached))


def train(predictor: Predictor, samples: int, speed: float = 1.0, noise: float = 0.05) -> None:
    rng = random.Random(7)
    for i in range(samples):
        new, cached = rng.choice([64, 500, 2000, 8000, 32000]), rng.choice([0, 0, 1000, 16000])
        seconds = real_seconds(new, cached, speed) * rng.uniform(1 - noise, 1 + noise)
        predictor.learn(KIND, "a", new, cached, seconds, float(i))
        predictor.check()


def test_one_sample_sets_the_scale() -> None:
    predictor = make_predictor()
    predictor.learn(KIND, "a", 1000, 0, 50.0, 0.0)
    assert predictor.seconds(KIND, "a", 1000, 0) == pytest.approx(50.0, rel=0.01)
    assert predictor.seconds(KIND, "a", 2000, 0) > 60.0


def test_a_few_dozen_samples_fit_a_real_machine() -> None:
    predictor = make_predictor()
    train(predictor, 60)
    for new, cached in ((128, 0), (1000, 1000), (4000, 0), (16000, 8000), (30000, 0)):
        real = real_seconds(new, cached)
        assert predictor.seconds(KIND, "a", new, cached) == pytest.approx(real, rel=0.15)
    assert predictor.errors.quantile(0.5) < 0.1


def test_drift_is_followed() -> None:
    predictor = make_predictor()
    train(predictor, 200)
    train(predictor, 100, speed=3.0)
    assert predictor.seconds(KIND, "a", 4000, 0) == pytest.approx(
        real_seconds(4000, 0, 3.0), rel=0.2
    )


def test_one_freak_sample_does_not_turn_it_over() -> None:
    predictor = make_predictor()
    train(predictor, 60)
    before = predictor.seconds(KIND, "a", 4000, 0)
    predictor.learn(KIND, "a", 4000, 0, real_seconds(4000, 0) * 100, 99.0)
    predictor.learn(KIND, "a", 4000, 0, 1e-9, 99.0)
    assert predictor.seconds(KIND, "a", 4000, 0) == pytest.approx(before, rel=0.6)


def test_sizes_that_always_grow_together_do_not_drift_apart() -> None:
    """A batch grows and its context with it, for hours: the samples say nothing of either alone."""
    rng, steps = random.Random(3), step_predictor()
    for i in range(3000):
        sequences = 5 + i % 40
        context = sequences * 8000 * rng.uniform(0.95, 1.05)
        real = 0.0255 + 1.5e-3 * sequences + 4.2e-8 * context
        if i > 30:
            predicted = steps.seconds(KIND, "d", sequences, context)
            assert predicted == pytest.approx(real, rel=0.12)
        steps.learn(KIND, "d", sequences, context, real * rng.gauss(1.0, 0.03), float(i))
    assert steps.ratio(KIND, "d") == pytest.approx(1.0, abs=0.1), "the fit says it, not the ratio"


def test_terms_far_from_the_prior_are_learned_however_small_they_are() -> None:
    """Reloading a token costs a fiftieth of computing it; a start, many times the prior."""
    rng, predictor = random.Random(5), prefill_predictor()

    def real(new: float, cached: float) -> float:
        return 0.065 + 1.165e-4 * new + 7.13e-10 * new * (new + 2 * cached) + 2.56e-6 * cached

    for i in range(300):
        new, cached = rng.randint(100, 20000), rng.choice((0, rng.randint(500, 20000)))
        predictor.learn(KIND, "a", new, cached, real(new, cached) * rng.gauss(1.0, 0.03), float(i))
    for new, cached in ((200, 0), (200, 16000), (8000, 8000), (16000, 0)):
        assert predictor.base(KIND, new, cached) == pytest.approx(real(new, cached), rel=0.05)


def test_a_slower_machine_of_a_kind_is_told_apart() -> None:
    predictor = make_predictor()
    for i in range(80):
        predictor.learn(KIND, "fast", 1000, 0, 1.0, float(i))
        predictor.learn(KIND, "slow", 1000, 0, 3.0, float(i))
    ratio = predictor.seconds(KIND, "slow", 1000, 0) / predictor.seconds(KIND, "fast", 1000, 0)
    assert 2.3 < ratio < 3.5


def test_beyond_what_was_seen_it_grows_like_the_prior_and_is_not_trusted() -> None:
    predictor = make_predictor()
    assert not predictor.trusted(KIND, 100, 0)
    for i in range(20):
        predictor.learn(KIND, "a", 500 + i, 0, 0.5 + i / 1000, float(i))
    assert predictor.trusted(KIND, 800, 0)
    assert not predictor.trusted(KIND, 100_000, 0)
    edge, far = predictor.seconds(KIND, "a", 519, 0), predictor.seconds(KIND, "a", 51900, 0)
    assert 50 * edge < far < 1000 * edge


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 200_000),
            st.integers(0, 200_000),
            st.floats(1e-6, 1e4) | st.just(0.0) | st.just(float("nan")) | st.just(-1.0),
        ),
        max_size=40,
    ),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_whatever_it_is_told_it_answers_a_finite_positive_time(
    samples: list[tuple[int, int, float]], new: int, cached: int
) -> None:
    predictor = make_predictor()
    for at, (n, c, seconds) in enumerate(samples):
        predictor.learn(KIND, "a", n, c, seconds, float(at))
        predictor.check()
    assert 0.0 < predictor.seconds(KIND, "a", new, cached) < float("inf")


def test_a_link_is_learned_by_pair_and_lent_to_its_kind() -> None:
    links = TransferPredictor()
    size = 64 << 20
    before = links.seconds("n", "a", "dram", Distance.NET, size)
    for i in range(30):
        links.learn("n", "a", "dram", Distance.NET, size, size / 2e8, float(i))
    links.check()
    assert links.seconds("n", "a", "dram", Distance.NET, size) == pytest.approx(size / 2e8, rel=0.1)
    assert links.seconds("x", "y", "dram", Distance.NET, size) == pytest.approx(size / 2e8, rel=0.2)
    assert links.seconds("n", "a", "dram", Distance.HOST, size) < before, (
        "nearer ones keep their prior"
    )


def test_one_slow_link_among_fast_ones_is_told_apart() -> None:
    links = TransferPredictor()
    for i in range(60):
        for source, rate in (("a", 2e9), ("b", 2e9), ("slow", 5e7)):
            size = (1 + i % 7) << 22
            links.learn(source, "t", "dram", Distance.NET, size, 1e-3 + size / rate, float(i))
    size = 16 << 20
    assert links.seconds("a", "t", "dram", Distance.NET, size) == pytest.approx(size / 2e9, rel=0.5)
    assert links.seconds("slow", "t", "dram", Distance.NET, size) == pytest.approx(
        size / 5e7, rel=0.3
    )


def test_many_small_writes_teach_the_latency() -> None:
    links = TransferPredictor()
    for i in range(60):
        size = (1 + i % 9) * 46_080
        links.learn("p", "d", "hbm", Distance.HOST, size, 2e-5 + size / 5e9, float(i))
    assert links.seconds("p", "d", "hbm", Distance.HOST, 46_080) == pytest.approx(2.9e-5, rel=0.3)
    assert links.errors.quantile(0.5) < 0.2


def test_impossible_transfers_teach_nothing() -> None:
    links = TransferPredictor()
    before = links.seconds("n", "a", "dram", Distance.HOST, 1 << 20)
    for size_bytes, seconds in ((0, 1.0), (-5, 1.0), (1 << 20, 0.0), (1 << 20, float("nan"))):
        links.learn("n", "a", "dram", Distance.HOST, size_bytes, seconds, 0.0)
    assert links.seconds("n", "a", "dram", Distance.HOST, 1 << 20) == before
    assert links.stats() == {"kinds": 0, "actors": 0}
