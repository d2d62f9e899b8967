"""What a service says of itself on `$SRV.PING`, `.INFO` and `.STATS`: NATS services API. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from moonpool.bus.desk import Desk

VERBS = ("PING", "INFO", "STATS")
_TYPE = "io.nats.micro.v1.{}_response"

T = TypeVar("T")


def control_subjects(verb: str, name: str, id: str) -> list[str]:
    """The three subjects on which a verb is asked: of all, of one kind, of one instance."""
    return [f"$SRV.{verb}", f"$SRV.{verb}.{name}", f"$SRV.{verb}.{name}.{id}"]


def describe(
    verb: str,
    name: str,
    id: str,
    version: str,
    metadata: Mapping[str, str],
    started: str,
    desks: Sequence[Desk[T]],
) -> bytes:
    """The JSON reply to one verb. `started`: ISO 8601 in UTC."""
    body: dict[str, Any] = {
        "type": _TYPE.format(verb.lower()),
        "name": name,
        "id": id,
        "version": version,
        "metadata": dict(metadata),
    }
    if verb == "INFO":
        body["description"] = f"Moonpool {name}"
        body["endpoints"] = [_endpoint(desk) | {"metadata": {}} for desk in desks]
    if verb == "STATS":
        body["started"] = started
        body["endpoints"] = [_endpoint(desk) | _counts(desk) for desk in desks]
    return json.dumps(body).encode()


def _endpoint(desk: Desk[T]) -> dict[str, Any]:
    endpoint = desk.endpoint
    return {
        "name": endpoint.name,
        "subject": endpoint.subject,
        "queue_group": endpoint.queue_group,
    }


def _counts(desk: Desk[T]) -> dict[str, Any]:
    return {
        "num_requests": desk.requests,
        "num_errors": desk.errors + desk.refused,
        "last_error": desk.last_error,
        "processing_time": desk.busy_ns,
        "average_processing_time": desk.busy_ns // max(1, desk.requests),
        "data": desk.stats(),
    }
