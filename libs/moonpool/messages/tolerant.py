"""Reading the public JSON contracts as a consumer should: unknown fields are ignored."""

import json
from types import UnionType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from moonpool.messages.codec import MalformedMessage

M = TypeVar("M", bound=BaseModel)


def read_tolerant(data: bytes, kind: type[M]) -> M:
    """One `kind` from JSON bytes, also from a producer newer than us. Raises MalformedMessage."""
    try:
        return kind.model_validate(_known(json.loads(data), kind))
    except (ValueError, ValidationError) as error:
        raise MalformedMessage(f"not a {kind.__name__}: {error}") from error


def _known(value: Any, annotation: Any) -> Any:
    """`value` without the fields that the models inside `annotation` do not have."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not isinstance(value, dict):
            return value
        fields = annotation.model_fields
        return {k: _known(v, fields[k].annotation) for k, v in value.items() if k in fields}
    inner = [each for each in get_args(annotation) if isinstance(each, type | UnionType)]
    models = [each for each in inner if isinstance(each, type) and issubclass(each, BaseModel)]
    if not models:
        return value
    if isinstance(value, list):
        return [_known(each, models[0]) for each in value]
    if isinstance(value, dict) and len(get_args(annotation)) == 2 and dict in _origins(annotation):
        return {k: _known(v, models[0]) for k, v in value.items()}
    return _known(value, models[0])


def _origins(annotation: Any) -> tuple[Any, ...]:
    origin = getattr(annotation, "__origin__", None)
    return (origin,) if origin is not None else ()
