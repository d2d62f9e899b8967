"""How the next token is chosen; travels with a request through every service."""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Validated by the gateway; services may rely on the bounds stated here."""

    temperature: float = 1.0  # 0: greedy; 0 <= t <= 2
    top_p: float = 1.0  # 0 < p <= 1
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # 0 <= p <= 1
    repetition_penalty: float = 1.0  # > 0; over prompt and output
    presence_penalty: float = 0.0  # -2..2; over output
    frequency_penalty: float = 0.0  # -2..2; over output
    # Random numbers are drawn from (seed, index of the output token) alone, so the same seed gives
    # the same text on any instance, in any batch, and across a failover in mid-answer.
    seed: int = 0
    max_tokens: int = 16  # >= 1; of output, counted from the original prompt
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()  # besides the model's own end tokens
    logprobs: int = -1  # -1: none; n >= 0: of the chosen token and the n likeliest; <= 20
