"""One event per request end, on `mp.audit.<tenant>.request_end`: a public JSON contract.

Producers are strict and consumers tolerant, as in `metrics.py`. Events say who asked what of whom
and how it went; they never hold prompts, answers or keys. Where the gateway is told to, they hold
names of the prompt's blocks, so that traffic can be simulated: equal blocks have equal names.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moonpool.messages.tolerant import read_tolerant

Outcome = Literal["ok", "stopped", "cancelled", "refused", "error"]


class CachedTokensV1(BaseModel):
    """Prompt tokens that were not computed, by the tier they came from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hbm: int = Field(default=0, ge=0)
    dram: int = Field(default=0, ge=0)
    nvme: int = Field(default=0, ge=0)
    oss: int = Field(default=0, ge=0)

    @property
    def total(self) -> int:
        return self.hbm + self.dram + self.nvme + self.oss


class StageTimingsV1(BaseModel):
    """Seconds; None: the request never got there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plan_s: float | None = Field(
        default=None, ge=0, description="Asking the conductor, all attempts."
    )
    queue_s: float | None = Field(default=None, ge=0, description="Waiting in the prefill's queue.")
    fetch_s: float | None = Field(
        default=None,
        ge=0,
        description="Waiting for reused blocks, beyond what overlapped with compute.",
    )
    compute_s: float | None = Field(default=None, ge=0, description="Prefill compute.")
    transfer_s: float | None = Field(
        default=None, ge=0, description="From the last layer computed to the decode's acceptance."
    )
    ttft_s: float | None = Field(
        default=None, ge=0, description="From request in to first token out."
    )
    tbt_mean_s: float | None = Field(default=None, ge=0, description="Mean time between tokens.")
    tbt_max_s: float | None = Field(default=None, ge=0)
    total_s: float = Field(ge=0, description="From request in to its end.")


class AttemptV1(BaseModel):
    """One try: a failed instance makes the next."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefill: str = ""
    decode: str = Field(default="", description="Equal to `prefill` on a colocated instance.")
    error_code: str = Field(default="", description="Why it ended early; empty: it did not.")


class AuditEventV1(BaseModel):
    """One request, at its end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    kind: Literal["request_end"] = "request_end"
    event_id: str = Field(description="Unique; a consumer may see an event twice.")
    unix_s: float = Field(description="End of the request, seconds since 1970.")
    gateway: str = Field(description="Id of the gateway that reports.")
    tenant: str
    request_id: str
    endpoint: str = Field(description="e.g. /v1/chat/completions")
    model: str
    stream: bool
    outcome: Outcome = Field(
        description="ok: the model ended or the length was reached; stopped: a stop text of the "
        "caller; cancelled: the client left; refused: before any work (429 or 4xx); error."
    )
    code: str = Field(default="", description="Error or refusal code; empty when ok or stopped.")
    http_status: int = Field(ge=100, le=599)
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    cached_tokens: CachedTokensV1 = CachedTokensV1()
    timings: StageTimingsV1
    predicted_ttft_s: float | None = Field(
        default=None, ge=0, description="By the conductor's plan."
    )
    attempts: list[AttemptV1] = Field(default_factory=list, description="In order, the last last.")
    block_tokens: int = Field(default=0, ge=0, description="Of one block; 0: no names are given.")
    block_names: str = Field(
        default="",
        description="Names of the prompt's full blocks with all before them, 8 bytes each, base64; "
        "one-way. Empty unless the gateway runs with MOONPOOL_AUDIT_BLOCKS.",
    )


def read_audit(data: bytes) -> AuditEventV1:
    """An event from the wire, fields unknown here ignored. Raises MalformedMessage."""
    return read_tolerant(data, AuditEventV1)
