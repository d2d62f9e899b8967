"""A request body: bytes to a JSON object, refusing what no service behind should ever meet."""

from typing import Any

import msgspec

from services.gateway.core.errors import BadInput

_decoder = msgspec.json.Decoder()  # refuses NaN, Infinity, lone surrogates and invalid UTF-8


def parse_object(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises BadInput that says where it is broken."""
    try:
        value = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise BadInput(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"the body is not valid UTF-8: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise BadInput("the body is nested too deeply", code="invalid_json") from error
    if not isinstance(value, dict):
        raise BadInput("the body must be a JSON object", code="invalid_json")
    return value
