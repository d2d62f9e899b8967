"""A service's metrics, each second on `mp.metrics.<service>.<id>`: a public JSON contract.

Producers are strict: what they build is validated and a field that is not in the contract is an
error. Consumers are tolerant: read with `read_metrics`, which ignores fields of a later minor
version. A change that would break a reader gets a new `version` and a new schema file.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moonpool.messages.tolerant import read_tolerant


class MetricSampleV1(BaseModel):
    """One counter or gauge of one set of labels."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="As in the Prometheus exposition, e.g. moonpool_requests_total.")
    kind: Literal["counter", "gauge"]
    labels: dict[str, str] = Field(default_factory=dict)
    value: float = Field(description="Counters only rise, and start at 0 with each epoch.")


class HistogramSampleV1(BaseModel):
    """One histogram of one set of labels, with quantiles estimated from its buckets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    labels: dict[str, str] = Field(default_factory=dict)
    count: int = Field(ge=0)
    sum: float
    p50: float | None = Field(default=None, description="None while nothing was observed.")
    p95: float | None = None
    p99: float | None = None
    buckets: list[tuple[float, int]] = Field(
        default_factory=list,
        description="(upper bound, observations at or below it), rising; the last bound is left "
        "out: it is infinite and its count is `count`.",
    )


class MetricsSnapshotV1(BaseModel):
    """Everything one process counts, at one moment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    service: str = Field(description="Role: gateway, conductor, prefill, decode, colocated, store.")
    id: str
    epoch: str = Field(description="New at every start of the process: counters begin again.")
    unix_s: float = Field(description="When it was taken, seconds since 1970.")
    uptime_s: float = Field(ge=0)
    samples: list[MetricSampleV1] = Field(default_factory=list)
    histograms: list[HistogramSampleV1] = Field(default_factory=list)


def read_metrics(data: bytes) -> MetricsSnapshotV1:
    """A snapshot from the wire, fields unknown here ignored. Raises MalformedMessage."""
    return read_tolerant(data, MetricsSnapshotV1)
