"""all -> all: who is there (`mp.registry.hello`, `.heartbeat`, `.goodbye`, `.roll`).

`hello` is a request that any conductor answers; instances ask it until one did. Heartbeats carry
the whole registration each second, so that whoever starts late knows everybody after a second; a
roll call is answered with one at once, so that it need not wait.
"""

import msgspec

from moonpool.messages.errors import ErrorInfo
from moonpool.messages.segments import Endpoint


class ModelRecord(msgspec.Struct, frozen=True):
    """What an instance serves; `identity` is the JSON of `kv.ModelIdentity`, so as to say why."""

    model: str  # as users name it
    fingerprint: bytes
    identity: str
    block_tokens: int
    block_bytes: int
    layers: int
    context_tokens: int
    dtype: str


class Registration(msgspec.Struct, frozen=True):
    id: str
    role: str  # "gateway", "conductor", "prefill", "decode", "colocated", "store", "foreign"
    epoch: str  # new at every start
    started_unix_s: float
    host_id: str
    version: str
    endpoints: list[Endpoint] = []
    model: ModelRecord | None = None  # instances only
    rack: str = ""  # what it shares a switch with; "": not told
    zone: str = ""  # what it shares a building or a region with
    url: str = ""  # HTTP address of a foreign engine, for routers


class HelloReply(msgspec.Struct, frozen=True):
    """`refusal`: code `fingerprint_mismatch` or `duplicate_id`; its message names both sides."""

    refusal: ErrorInfo | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    registration: Registration
    state: str  # "starting", "ready", "draining"
    company: list[str] = []  # answering a roll call: ids of its role that it hears; []: not told


class RollCall(msgspec.Struct, frozen=True):
    """Somebody is new: say that you are there. `roles` empty: everybody."""

    roles: list[str] = []


class Goodbye(msgspec.Struct, frozen=True):
    """Sent when leaving on purpose: erase my entries now."""

    id: str
    epoch: str
