"""Made-up traffic with the statistics of published traces, for machines that have none: golden
numbers rest on it. It is no substitute for the real thing.

`chat`: sessions of a few turns; each prompt is the session so far. `documents`: many questions
about each of many long documents. `tools`: short calls behind a few fixed prompts, among chats.
Numbers come from a small generator of our own, so that they stay the same for ever.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import cos, exp, log, pi, sqrt

from services.conductor.simulate.cache.trace import BLOCK_TOKENS, Request

SYSTEM_BLOCK = 0  # opens every prompt


class Dice:
    """The minimal standard generator: x <- 48271 x mod 2^31 - 1."""

    def __init__(self, seed: int) -> None:
        self._state = seed % 2147483646 + 1

    def uniform(self) -> float:
        """In (0, 1)."""
        self._state = self._state * 48271 % 2147483647
        return self._state / 2147483647

    def exponential(self, mean: float) -> float:
        return -mean * log(self.uniform())

    def lognormal(self, median: float, sigma: float) -> float:
        normal = sqrt(-2 * log(self.uniform())) * cos(2 * pi * self.uniform())
        return median * exp(sigma * normal)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a kind of traffic looks like."""

    seed: int
    requests: int
    arrivals_per_s: float  # of sessions
    first_tokens: float  # median of a session's first prompt
    first_sigma: float
    turn_tokens: float  # median growth per turn
    go_on: float  # probability of a further turn
    gap_s: float  # median time between turns
    gap_sigma: float = 1.0
    tools_share: float = 0.0  # of requests: short ones behind a fixed prompt
    grows: bool = True  # a turn's prompt repeats all of the last one


GENERATED: dict[str, Traffic] = {
    "chat": Traffic(11, 3000, 1.9, 6500, 1.0, 2400, 0.42, 110, tools_share=0.0),
    "documents": Traffic(12, 1500, 0.9, 14000, 0.8, 300, 0.72, 60, grows=False),
    "tools": Traffic(13, 4000, 1.1, 6000, 1.0, 2000, 0.4, 110, tools_share=0.55),
}
TOOL_PROMPTS_BLOCKS = (12, 12, 12, 5)
PROMPT_TOKENS_MAX = 126_000


@dataclass(slots=True, order=True)
class _Session:
    due_s: float
    number: int
    tokens: int = field(compare=False)
    blocks: list[int] = field(compare=False)  # full ones so far


def requests_of(traffic: Traffic) -> list[Request]:
    """This traffic; always the same."""
    return list(_requests(traffic))


def generate(name: str) -> list[Request]:
    """The named traffic; always the same. KeyError when unknown."""
    return list(_requests(GENERATED[name]))


def _requests(traffic: Traffic) -> Iterator[Request]:
    dice, fresh = Dice(traffic.seed), _counter(1 + sum(TOOL_PROMPTS_BLOCKS))
    waiting: list[_Session] = []
    next_s, number = 0.0, 0
    for _ in range(traffic.requests):
        if not waiting or next_s <= waiting[0].due_s:
            if dice.uniform() < traffic.tools_share:
                yield _tool_call(dice, next_s, fresh)
                next_s += dice.exponential(1 / traffic.arrivals_per_s)
                continue
            tokens = min(dice.lognormal(traffic.first_tokens, traffic.first_sigma), 1e5)
            session = _Session(next_s, number, int(tokens) + 1, [SYSTEM_BLOCK])
            number += 1
            next_s += dice.exponential(1 / traffic.arrivals_per_s)
        else:
            session = heappop(waiting)
        yield _prompt(session, fresh)
        if dice.uniform() < traffic.go_on:
            grown = int(dice.lognormal(traffic.turn_tokens, 0.8)) if traffic.grows else 0
            session.tokens = min(session.tokens + grown, PROMPT_TOKENS_MAX)
            session.due_s += dice.lognormal(traffic.gap_s, traffic.gap_sigma)
            heappush(waiting, session)


def _prompt(session: _Session, fresh: Callable[[], int]) -> Request:
    """The session's prompt as it stands; its full blocks are kept for the next one."""
    while len(session.blocks) < session.tokens // BLOCK_TOKENS:
        session.blocks.append(fresh())
    blocks = session.blocks[: max(1, session.tokens // BLOCK_TOKENS)]
    if session.tokens > len(blocks) * BLOCK_TOKENS:
        blocks = [*blocks, fresh()]
    return Request(session.due_s, session.tokens, blocks)


def _tool_call(dice: Dice, now_s: float, fresh: Callable[[], int]) -> Request:
    kind = int(dice.uniform() * len(TOOL_PROMPTS_BLOCKS))
    first = 1 + sum(TOOL_PROMPTS_BLOCKS[:kind])
    blocks = list(range(first, first + TOOL_PROMPTS_BLOCKS[kind]))
    tokens = len(blocks) * BLOCK_TOKENS + min(int(dice.lognormal(500, 1.0)) + 1, 40_000)
    blocks += [fresh() for _ in range(-(-tokens // BLOCK_TOKENS) - len(blocks))]
    return Request(now_s, tokens, blocks)


def _counter(first: int) -> Callable[[], int]:
    numbers = iter(range(first, 1 << 40))
    return lambda: next(numbers)
