"""Asks a gateway for greedy completions of token ids, with log-probabilities."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from services.cli.http import post_json
from services.cli.options import Target
from services.cli.verify.compare import Output

TOP = 20
TOGETHER_MAX = 16


def ask(target: Target, model: str, tokens: Sequence[int], max_tokens: int, salt: str) -> Output:
    """One completion. `salt` keeps this verification's cache apart from everything else.
    Raises GatewayRefused or GatewayAway."""
    answer = post_json(
        target,
        "/v1/completions",
        {
            "model": model,
            "prompt": list(tokens),
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": TOP,
            "ignore_eos": True,
            "cache_salt": salt,
            "return_token_ids": True,
        },
    )
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    details = answer["usage"].get("prompt_tokens_details") or {}
    return Output(
        texts=logprobs["tokens"],
        logprobs=logprobs["token_logprobs"],
        top=logprobs["top_logprobs"],
        tokens=choice.get("token_ids") or (),
        cached_tokens=details.get("cached_tokens", 0),
    )


def ask_together(
    target: Target, model: str, prompts: Sequence[Sequence[int]], max_tokens: int, salt: str
) -> list[Output]:
    """All at once, so that they share batches."""
    with ThreadPoolExecutor(TOGETHER_MAX) as pool:
        return list(pool.map(lambda p: ask(target, model, p, max_tokens, salt), prompts))
