"""The matrix as Mooncake writes it: {"cpu:0": [["mlx5_0"], ["mlx5_1"]], "cuda:0": ...}. Pure."""

import json
import re
from typing import Any

from moonpool.transfer.errors import BadTopology
from moonpool.transfer.topology.matrix import ANY_LOCATION, Row, Topology

_LOCATION = re.compile(r"(cpu|cuda|musa|hip|npu|gpu):(0|[1-9][0-9]*)")
_SHAPE = "[[preferred NICs], [other NICs]]"


def is_location(name: str) -> bool:
    """Whether memory can be there: "cpu:0", "cuda:0"."""
    return _LOCATION.fullmatch(name) is not None


def parse(text: str) -> Topology:
    """Raises BadTopology, which says where the text is wrong."""
    try:
        found = json.loads(text, object_pairs_hook=_no_twins)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise BadTopology(f"topology is no JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise BadTopology("topology is nested too deep") from error
    if not isinstance(found, dict):
        raise BadTopology(f"topology must be an object by location, not {_kind(found)}")
    return Topology({location: _row(location, value) for location, value in found.items()})


def render(topology: Topology) -> str:
    rows = topology.rows.items()
    return json.dumps({name: [list(row.preferred), list(row.others)] for name, row in rows})


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise BadTopology(f"{twin!r} is there twice")
    return out


def _row(location: str, value: Any) -> Row:
    if location != ANY_LOCATION and not is_location(location):
        raise BadTopology(f'{location!r} is no location: "cpu:0" or "cuda:0" is')
    if not isinstance(value, list) or len(value) != 2:
        given = f"a list of {len(value)}" if isinstance(value, list) else _kind(value)
        raise BadTopology(f"{location} must be {_SHAPE}, not {given}")
    preferred, others = (_names(location, part) for part in value)
    twice = set(preferred) & set(others)
    if twice:
        raise BadTopology(f"{location}: {min(twice)} cannot be both preferred and other")
    return Row(preferred, others)


def _names(location: str, part: Any) -> tuple[str, ...]:
    if not isinstance(part, list):
        raise BadTopology(f"{location} must be {_SHAPE}; {_kind(part)} is no list of NICs")
    for name in part:
        if not isinstance(name, str) or not name:
            raise BadTopology(f"{location}: {json.dumps(name)} is no NIC's name")
        if part.count(name) > 1:
            raise BadTopology(f"{location}: {name} is there twice")
    return tuple(part)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")
