"""Requests that come by the clock, whether or not earlier ones were answered. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

PROMPT_TOKENS = (96, 192)
OUTPUT_TOKENS = (8, 24)
VOCABULARY = range(100, 48_000)


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float  # from the start of the window
    prompt: list[int]  # that no cache has seen
    output_tokens: int


def shapes(seed: int) -> Iterator[tuple[list[int], int]]:
    """Prompts and lengths of answers, without end; the same for the same seed."""
    chance = random.Random(seed)
    while True:
        prompt = chance.choices(VOCABULARY, k=chance.randint(*PROMPT_TOKENS))
        yield prompt, chance.randint(*OUTPUT_TOKENS)


def poisson(rate: float, window_s: float, seed: int) -> list[Arrival]:
    """Arrivals of one window at `rate` requests per second: as many as that makes, at times of
    chance. How many come varies between windows of a Poisson process, and would be most of the
    noise between loads."""
    chance = random.Random(seed)
    times_s = sorted(chance.uniform(0.0, window_s) for _ in range(round(rate * window_s)))
    return [
        Arrival(at_s, prompt, tokens)
        for at_s, (prompt, tokens) in zip(times_s, shapes(seed + 1), strict=False)
    ]
