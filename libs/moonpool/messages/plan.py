"""gateway -> conductor: where shall this request run? (`mp.conductor.plan`)"""

import msgspec

from moonpool.messages.errors import ErrorInfo
from moonpool.messages.ids import InstanceId, NodeId, OwnerId, RequestId, TenantId


class PlanRequest(msgspec.Struct, frozen=True):
    request: RequestId
    tenant: TenantId
    model: str
    fingerprint: bytes
    keys: bytes  # packed keys of all full blocks of the prompt
    prompt_tokens: int
    max_tokens: int
    attempt: int = 0
    exclude: tuple[InstanceId, ...] = ()  # refused or died in this request's earlier attempts
    slo_ttft_s: float = 0.0  # 0: the mesh's default
    slo_tbt_s: float = 0.0
    level: int = 1  # class of its priority: 0 high, 1 normal, 2 low
    probe: bool = False  # what would be planned? The answer counts against nobody


class PrefixRun(msgspec.Struct, frozen=True):
    """Leading blocks `[start, end)` of the prompt that `owner` holds in `tier`."""

    owner: OwnerId
    tier: str  # "hbm", "dram", "nvme", "oss"
    start: int
    end: int


class Plan(msgspec.Struct, frozen=True):
    prefill: InstanceId
    decode: InstanceId  # equal to `prefill` for a colocated instance: no reserve, no transfer
    # Contiguous from block 0; blocks of runs that the prefill owns itself (tier hbm) need no fetch.
    runs: tuple[PrefixRun, ...] = ()
    store: NodeId | None = None  # where finished blocks go; None: no node can take them
    predicted_ttft_s: float = 0.0
    predicted_tbt_s: float = 0.0
    # The prefill computes prompts in the order in which they are due: this long after each came.
    patience_s: float = 0.0


class PlanReply(msgspec.Struct, frozen=True):
    """Either a plan or a refusal: HTTP 429 with its `retry_after_s` and `code`.

    Codes: `ttft`, `tbt`, `kv_space`, `quota`, `draining`, `no_instances`, `unknown_model`,
    `fingerprint_mismatch`.
    """

    plan: Plan | None = None
    refusal: ErrorInfo | None = None
