"""anyone -> conductor: how does the mesh look from where you are? (`mp.conductor.status`)"""

import msgspec

from moonpool.messages.load import LoadReport
from moonpool.messages.registry import Registration


class StatusRequest(msgspec.Struct, frozen=True):
    pass


class MemberStatus(msgspec.Struct, frozen=True):
    """One process, as one conductor knows it."""

    registration: Registration
    state: str  # its own word: "starting", "ready", "draining"
    health: str  # "alive", "suspect"
    heard_ago_s: float  # since its last sign of life
    mismatch: str = ""  # why it may not serve its model, when it may not
    load: LoadReport | None = None  # its last report, samples left out
    blocks: dict[str, int] = {}  # tier -> blocks that the index knows of it
    following: bool = False  # the index follows its events; False: its snapshot is still to come


class PredictorStatus(msgspec.Struct, frozen=True):
    """How far one predictor was off lately: |predicted - actual| / actual."""

    name: str  # "prefill", "step", "transfer"
    samples: int
    error_p50: float
    error_p90: float


class ConductorStatus(msgspec.Struct, frozen=True):
    """`members` in order of role and id."""

    id: str
    uptime_s: float
    members: list[MemberStatus]
    predictors: list[PredictorStatus]
    keys: int  # distinct blocks that the index knows
    blocks: dict[str, int] = {}  # tier -> replicas
    counters: dict[str, int] = {}
