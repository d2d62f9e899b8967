"""Made-up traffic with answers, for machines without traces: prompts as `cache/generate.py` makes
them, and lengths of answers whose median, mean and tail are those of the published traces."""

from dataclasses import dataclass
from pathlib import Path

from services.conductor.simulate.cache.generate import GENERATED, Dice, requests_of
from services.conductor.simulate.cache.generate import Traffic as Prompts
from services.conductor.simulate.serve.traffic import Ask, Traffic, make_traffic, read_traffic

TRACE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Answers:
    """Lengths of answers in tokens: short ones and long ones."""

    short_median: float
    short_sigma: float
    long_share: float
    long_median: float
    long_sigma: float


_ANSWERS = {
    "chat": Answers(120, 1.2, 0.7, 400, 0.45),
    "documents": Answers(45, 1.0, 0.3, 320, 0.45),
    "tools": Answers(45, 0.8, 0.3, 430, 0.4),
}
# 23,608 requests in 3,537 s, prompts of 8.6 k tokens on average, 60 % of them seen before, answers
# of 182: what is published of the tool and agent trace.
TOOLAGENT = Prompts(14, 23_608, 4.9, 5500, 1.0, 1500, 0.5, 110, tools_share=0.6)
MADE = (*GENERATED, "toolagent")


def made(name: str, seed: int = 1) -> Traffic:
    """The named traffic. KeyError when unknown."""
    prompts = TOOLAGENT if name == "toolagent" else GENERATED[name]
    answers = _ANSWERS["tools" if name == "toolagent" else name]
    dice = Dice(prompts.seed * 1000 + seed)
    asks = []
    for number, request in enumerate(requests_of(prompts)):
        whole = request.blocks[: request.input_tokens // TRACE_BLOCK_TOKENS]
        output = _length(answers, dice)
        asks.append(Ask(number, request.arrived_s, request.input_tokens, output, whole))
    return make_traffic(name, asks, TRACE_BLOCK_TOKENS, seed)


def load_traffic(name_or_path: str, block_tokens: int, seed: int = 1) -> Traffic:
    """Made-up traffic by name, or a trace from a file. Raises BadTrace, OSError."""
    if name_or_path in MADE and block_tokens == TRACE_BLOCK_TOKENS:
        return made(name_or_path, seed)
    return read_traffic(Path(name_or_path), block_tokens, seed)


def _length(answers: Answers, dice: Dice) -> int:
    if dice.uniform() < answers.long_share:
        length = dice.lognormal(answers.long_median, answers.long_sigma)
    else:
        length = dice.lognormal(answers.short_median, answers.short_sigma)
    return max(1, min(int(length), 2000))
