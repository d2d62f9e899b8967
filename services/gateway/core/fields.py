"""Bodies of the HTTP requests, and what is wrong with one, in the caller's words.

Types are strict: `"0.5"` is no number and `true` no integer. `null` means "not given". Fields that
we do not know are ignored, as OpenAI-compatible servers do; fields that we know but do not
support are refused unless their value changes nothing, so that nobody gets another answer
than asked for.
"""

from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from services.gateway.core.errors import BadInput

LOGPROBS_MAX = 20
STOPS_MAX = 16
STOP_CHARS_MAX = 1024
STOP_IDS_MAX = 64
SALT_CHARS_MAX = 1024
MESSAGES_MAX = 10_000
INT_MAX = 2**31 - 1

# Known, not supported: field -> values that change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "prompt_logprobs": (),
    "prompt_embeds": (),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "logits_processors": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > STOPS_MAX:
        raise ValueError(f"at most {STOPS_MAX} stop strings, got {len(stops)}")
    if any(not 1 <= len(stop) <= STOP_CHARS_MAX for stop in stops):
        raise ValueError(f"each stop string must have 1 to {STOP_CHARS_MAX} characters")
    return stops


def _content(value: Any) -> Any:
    """Plain text of a message, text parts put together."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts: list[str] = []
    for at, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise ValueError(f"part {at} must be an object with a type")
        if kind != "text":
            raise ValueError(f"part {at} has type {kind[:64]!r}: this model reads text only")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"part {at} must have a string `text`")
        texts.append(part["text"])
    return "".join(texts)


def _prompt(value: Any) -> Any:
    """A string, or a list of token ids; a list of one of them counts as that one."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | list):
        raise ValueError("one prompt per request: send several requests for several prompts")
    raise ValueError("must be a string, a list of one string, or a list of token ids")


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Any, AfterValidator(_content)]


class CommonBody(BaseModel):
    """What both completion routes take."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1, max_length=512)]
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[Any, AfterValidator(_stops)] | None = None
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0, le=INT_MAX)]], Field(max_length=STOP_IDS_MAX)]
        | None
    ) = None
    max_tokens: Annotated[int, Field(ge=1, le=INT_MAX)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT_MAX)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=SALT_CHARS_MAX)] | None = None
    user: str | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatBody(CommonBody):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT_MAX)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None


class CompletionBody(CommonBody):
    prompt: Annotated[Any, AfterValidator(_prompt)]
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None


B = TypeVar("B", bound=CommonBody)


def read_body(kind: type[B], given: dict[str, Any]) -> B:
    """`given` as a body of that kind. Raises BadInput, which names the field."""
    _refuse_unsupported(given)
    try:
        body = kind.model_validate(given)
    except ValidationError as error:
        _refuse(error)
    if body.stream_options is not None and not body.stream:
        raise BadInput("stream_options: only allowed when stream is true", param="stream_options")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise BadInput("top_logprobs: needs logprobs to be true", param="top_logprobs")
    return body


def _refuse_unsupported(given: dict[str, Any]) -> None:
    for name, harmless in UNSUPPORTED.items():
        value = given.get(name)
        if value is not None and value not in harmless:
            raise BadInput(
                f"{name}: not supported by this server", param=name, code="unsupported_parameter"
            )


def _refuse(error: ValidationError) -> NoReturn:
    """The first thing that is wrong, as one BadInput."""
    first = error.errors(include_url=False, include_input=False)[0]
    param = ""
    for step in first["loc"]:
        if isinstance(step, int):
            param += f"[{step}]"
        elif "[" not in step:  # pydantic's own marks, such as `list[..]`, are no path
            param += f".{step}" if param else step
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        code, message = "missing_required_parameter", "this field is required"
    elif first["type"].endswith("_type"):
        code = "invalid_type"
    else:
        code = "invalid_value"
    if param == "n":
        code, message = "unsupported_parameter", "only 1 choice per request is supported"
    if param == "messages" and first["type"] == "too_short":
        message = "must hold at least one message"
    raise BadInput(f"{param}: {message}", param=param or None, code=code)
