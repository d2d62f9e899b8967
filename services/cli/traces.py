"""Audit events as a trace that the simulator reads: times, lengths and numbers of blocks, no text.

One line of JSON per request: `timestamp` (ms from the first), `input_length`, `output_length`,
`hash_ids` (numbers of the prompt's blocks, each standing for all before it too) and a hashed
`tenant`. Requests that were refused before they were read are left out.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moonpool.messages.audit import AuditEventV1

_NAME_BYTES = 8


@dataclass(slots=True)
class Exported:
    """What became of the events."""

    requests: int = 0
    left_out: int = 0  # nothing was asked of the mesh, or a second copy
    nameless: int = 0  # exported without shared blocks: the gateway did not name any


@dataclass(slots=True)
class TraceExport:
    """Turns events into lines; remembers which block got which number."""

    block_tokens: int  # of the trace
    told: Exported = field(default_factory=Exported)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def lines(self, events: Iterable[AuditEventV1]) -> Iterator[dict[str, Any]]:
        """In order of arrival; a copy of an event counts once."""
        given = list(events)
        once = {event.event_id: event for event in given}
        kept = [event for event in once.values() if event.prompt_tokens > 0]
        self.told.left_out = len(given) - len(kept)
        kept.sort(key=lambda event: (_arrived_s(event), event.event_id))
        for event in kept:
            self.told.requests += 1
            yield {
                "timestamp": round(1000 * (_arrived_s(event) - _arrived_s(kept[0]))),
                "input_length": event.prompt_tokens,
                "output_length": max(1, event.completion_tokens),
                "hash_ids": self._blocks(event),
                "tenant": hashlib.sha256(event.tenant.encode()).hexdigest()[:12],
            }

    def _blocks(self, event: AuditEventV1) -> list[int]:
        """Numbers of all blocks, the last one possibly partial and like no other."""
        names = _names(event)
        whole, blocks = event.prompt_tokens // self.block_tokens, []
        group = self.block_tokens // event.block_tokens if event.block_tokens else 0
        if not group or group * event.block_tokens != self.block_tokens:
            self.told.nameless += 1
            group, names = 1, []
        for at in range(whole):
            last = (at + 1) * group - 1  # stands for all before it
            blocks.append(self._number(names[last] if last < len(names) else b""))
        if event.prompt_tokens % self.block_tokens:
            blocks.append(self._number(b""))
        return blocks

    def _number(self, name: bytes) -> int:
        """The name's number; an empty name gets a new one each time."""
        key = name or len(self._numbers).to_bytes(9, "big")
        return self._numbers.setdefault(key, len(self._numbers))


def _arrived_s(event: AuditEventV1) -> float:
    return event.unix_s - event.timings.total_s


def _names(event: AuditEventV1) -> list[bytes]:
    try:
        packed = base64.b64decode(event.block_names, validate=True)
    except (binascii.Error, ValueError):
        return []
    return [packed[at : at + _NAME_BYTES] for at in range(0, len(packed), _NAME_BYTES)]
