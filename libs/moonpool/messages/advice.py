"""anyone -> conductor: which side is short? (`mp.conductor.advise`); and what dual instances do
(`mp.instance.<id>.role`)."""

import msgspec

from moonpool.messages.errors import ErrorInfo

DUTIES = ("both", "prefill", "decode")  # of a colocated instance


class AdviceRequest(msgspec.Struct, frozen=True):
    pass


class SideAdvice(msgspec.Struct, frozen=True):
    """One side of one model."""

    side: str  # "prefill", "decode", "colocated": those that do both
    have: int
    needed: float  # instances, for what was asked lately, refused requests included
    short: int  # instances to add; below 0: to spare
    refused_per_s: float = 0.0  # for lack of this side


class ModelAdvice(msgspec.Struct, frozen=True):
    model: str
    sides: tuple[SideAdvice, ...]
    says: str  # in one sentence


class AdviceReply(msgspec.Struct, frozen=True):
    conductor: str
    watched_s: float  # how long this conductor has been looking; it forgets within minutes
    models: tuple[ModelAdvice, ...] = ()


class RoleRequest(msgspec.Struct, frozen=True):
    """To a colocated instance: take new work of this kind only. What runs goes on."""

    duty: str  # one of DUTIES


class RoleReply(msgspec.Struct, frozen=True):
    duty: str = ""  # as it is now
    refusal: ErrorInfo | None = None
