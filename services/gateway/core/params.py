"""From a request's fields to how tokens are chosen."""

from moonpool.messages.sampling import SamplingParams
from services.gateway.core.errors import BadInput
from services.gateway.core.fields import ChatBody, CommonBody, CompletionBody

COMPLETION_TOKENS_DEFAULT = 16  # as OpenAI's completions; a chat runs to the end of the context
_SEEDS = 2**63


def max_tokens_of(body: CommonBody, prompt_tokens: int, context_tokens: int) -> int:
    """Tokens the answer may have. Raises BadInput when prompt and answer exceed the context."""
    room = context_tokens - prompt_tokens
    if room < 1:
        what = f"the prompt has {prompt_tokens} and leaves no room for an answer"
        raise _beyond(body, context_tokens, what)
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    if asked is None:
        return room if isinstance(body, ChatBody) else min(room, COMPLETION_TOKENS_DEFAULT)
    if asked > room:
        what = f"{prompt_tokens} in the prompt and {asked} for the answer are more"
        raise _beyond(body, context_tokens, what)
    return asked


def sampling_of(
    body: CommonBody, prompt_tokens: int, context_tokens: int, fallback_seed: int
) -> SamplingParams:
    """Raises BadInput. `fallback_seed` is taken when the caller gave none: one per request, so
    that an answer continued elsewhere goes on with the same draws."""
    limit = max_tokens_of(body, prompt_tokens, context_tokens)
    min_tokens = body.min_tokens or 0
    if min_tokens > limit:
        raise BadInput(
            f"min_tokens: {min_tokens} is above the {limit} tokens the answer may have",
            param="min_tokens",
        )
    return SamplingParams(
        temperature=_given(body.temperature, 1.0),
        top_p=_given(body.top_p, 1.0),
        top_k=max(0, body.top_k or 0),
        min_p=_given(body.min_p, 0.0),
        repetition_penalty=_given(body.repetition_penalty, 1.0),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        seed=(fallback_seed if body.seed is None else body.seed) % _SEEDS,
        max_tokens=limit,
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logprobs=logprobs_of(body),
    )


def logprobs_of(body: CommonBody) -> int:
    """-1: none; n: of the chosen token and the n likeliest."""
    if isinstance(body, ChatBody):
        return (body.top_logprobs or 0) if body.logprobs else -1
    assert isinstance(body, CompletionBody)
    return -1 if body.logprobs is None else body.logprobs


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _beyond(body: CommonBody, context_tokens: int, what: str) -> BadInput:
    return BadInput(
        f"This model's context is {context_tokens} tokens: {what}.",
        param="messages" if isinstance(body, ChatBody) else "prompt",
        code="context_length_exceeded",
    )
