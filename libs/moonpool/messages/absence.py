"""client -> store node, and node -> node: what was changed while a node did not answer
(`mp.store.<owner>.absent`, `.notes`, `.recall`)."""

import msgspec

from moonpool.messages.ids import TenantId


class AbsentRequest(msgspec.Struct, frozen=True):
    """client -> node: this was changed while `nodes` could not be told. The receiver keeps it for
    them. `prefix`: names that begin so were removed; `all`: everything of the tenant was."""

    tenant: TenantId
    nodes: list[str]
    keys: bytes = b""  # packed
    prefix: str | None = None
    all: bool = False
    age_s: float = 0.0  # how long ago the change began


class AbsentReply(msgspec.Struct, frozen=True):
    noted: int  # for so many nodes


class NotesRequest(msgspec.Struct, frozen=True):
    """node -> node: what was changed in my absence? Notes up to number `after` may be forgotten."""

    node: str
    after: int = 0
    is_new: bool = False  # of a node that starts: it wants to know who is absent, too


class Note(msgspec.Struct, frozen=True, array_like=True):
    """`kind`: "key" (`key` was replaced or removed), "prefix" (names that begin with `prefix` were
    removed), "named" (any name may have been changed), "all" (everything was removed)."""

    tenant: TenantId
    kind: str
    age_s: float  # what is older than that is void
    key: bytes = b""
    prefix: str = ""


class NotesReply(msgspec.Struct, frozen=True):
    """`until`: number of the last one here; asked for again after it, until there are none."""

    notes: list[Note]
    until: int = 0
    absent: list[str] = []  # nodes that the sender keeps notes for


class RecallRequest(msgspec.Struct, frozen=True):
    """node -> node: I have notes for you. Answered when they are heeded."""

    node: str  # who has them


class RecallReply(msgspec.Struct, frozen=True):
    dropped: int  # objects
