"""vLLM's KV events off the wire: one msgpack batch, written as arrays or as maps by its versions.

batch    ts, events, data_parallel_rank?
stored   block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium?, lora_name?,
         extra_keys?, group_idx?
removed  block_hashes, medium?, group_idx?
cleared
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from moonpool.messages.codec import MalformedMessage

Hash = int | bytes  # vLLM's name of a block; which of the two depends on its version

_STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
    "lora_name", "extra_keys", "group_idx",
)  # fmt: skip
_REMOVED = ("block_hashes", "medium", "group_idx")
_BATCH = ("ts", "events")


@dataclass(frozen=True, slots=True)
class Stored:
    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: tuple[int, ...]  # of all blocks, one after the other
    block_tokens: int
    medium: str
    adapter: str  # "": none
    extra: tuple[bytes, ...]  # per block, what else its name covers; b"": nothing
    group: int


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: tuple[Hash, ...]
    medium: str
    group: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The engine dropped all blocks."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    unix_s: float
    events: tuple[Event, ...]


def read_batch(payload: bytes) -> Batch:
    """Raises MalformedMessage. Kinds of events that we do not know are left out."""
    try:
        fields = _fields(msgspec.msgpack.decode(payload), _BATCH)
        read = [_event(each) for each in _list(fields["events"])]
        unix_s = float(fields["ts"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(f"not a batch of KV events: {error!r}") from error
    return Batch(unix_s, tuple(each for each in read if each is not None))


def _event(raw: Any) -> Event | None:
    if isinstance(raw, dict):
        kind = raw.get("type")
    else:
        kind, raw = next(iter(_list(raw)), None), raw[1:]
    if kind == "BlockStored":
        return _stored(_fields(raw, _STORED))
    if kind == "BlockRemoved":
        fields = _fields(raw, _REMOVED)
        return Removed(_hashes(fields), _text(fields, "medium"), _group(fields))
    return Cleared() if kind == "AllBlocksCleared" else None


def _stored(fields: dict[str, Any]) -> Stored:
    hashes, adapter = _hashes(fields), _adapter(fields)
    tokens = tuple(_whole(token) for token in _list(fields["token_ids"]))
    block_tokens = _whole(fields["block_size"])
    if block_tokens < 1 or len(tokens) != len(hashes) * block_tokens:
        raise ValueError(f"{len(tokens)} tokens in {len(hashes)} blocks of {block_tokens}")
    extra = fields.get("extra_keys") or [None] * len(hashes)
    if len(extra) != len(hashes):
        raise ValueError(f"{len(extra)} extra keys for {len(hashes)} blocks")
    parent = fields["parent_block_hash"]
    return Stored(
        hashes=hashes,
        parent=None if parent is None else _hash(parent),
        tokens=tokens,
        block_tokens=block_tokens,
        medium=_text(fields, "medium"),
        adapter=adapter,
        extra=tuple(_extra(each, fields.get("lora_name")) for each in extra),
        group=_group(fields),
    )


def _adapter(fields: dict[str, Any]) -> str:
    name, number = fields.get("lora_name"), fields.get("lora_id")
    return str(name) if name else "" if number is None else f"#{number}"


def _extra(keys: Any, lora_name: Any) -> bytes:
    """What names a block besides its tokens; the adapter counts elsewhere."""
    left = [key for key in keys or () if key != lora_name]
    return msgspec.msgpack.encode(left) if left else b""


def _fields(raw: Any, names: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(raw, dict):
        return raw
    return dict(zip(names, _list(raw), strict=False))


def _hashes(fields: dict[str, Any]) -> tuple[Hash, ...]:
    return tuple(_hash(each) for each in _list(fields["block_hashes"]))


def _hash(value: Any) -> Hash:
    if isinstance(value, int | bytes) and not isinstance(value, bool):
        return value
    raise TypeError(f"a block hash is {type(value).__name__}")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _group(fields: dict[str, Any]) -> int:
    value = fields.get("group_idx")
    return 0 if value is None else _whole(value)


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise TypeError(f"a list is {type(value).__name__}")


def _whole(value: Any) -> int:
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise TypeError(f"a whole number is {value!r:.40}")
