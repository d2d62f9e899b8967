"""What one request asks of the mesh besides its answer, in headers, within its tenant's limits.

X-Moonpool-Priority: high | normal | low     who goes first where prompts queue
X-Moonpool-SLO-TTFT: seconds                 refused, also in a queue, when it can't be met
X-Moonpool-SLO-TBT: seconds                  refused when no decode is that fast
X-Moonpool-Deadline: seconds                 the whole answer; cut off after it
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from moonpool.messages.errors import CallerError
from moonpool.messages.ids import TenantId, check_id
from moonpool.messages.prefill import LEVELS, WEIGHT_MAX
from moonpool.settings import PREFIX, SettingsError
from services.gateway.core.errors import BadInput

PRIORITY = "x-moonpool-priority"
SLO_TTFT = "x-moonpool-slo-ttft"
SLO_TBT = "x-moonpool-slo-tbt"
DEADLINE = "x-moonpool-deadline"
SECONDS_MAX = 86_400.0
NORMAL = LEVELS.index("normal")
EVERYBODY = "*"


@dataclass(frozen=True, slots=True)
class Promises:
    """0.0: the mesh's own."""

    level: int = NORMAL
    weight: float = 1.0
    slo_ttft_s: float = 0.0
    slo_tbt_s: float = 0.0
    deadline_s: float = 0.0


NO_PROMISES = Promises()


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """What a tenant's requests may ask for."""

    weight: float = 1.0  # share of queues next to other tenants'
    level: int = NORMAL  # the highest class it may ask for
    ttft_s: float = 0.0  # the tightest promises it may ask for
    tbt_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """`alpha: weight=4 priority=high ttft=0.5 tbt=0.05; *: weight=1`; `*` is everybody else."""

    by_tenant: dict[str, TenantLimit] = field(default_factory=dict)

    @classmethod
    def read(cls, spec: str) -> "TenantLimits":
        """Raises SettingsError, which names the part."""
        limits: dict[str, TenantLimit] = {}
        for part in filter(None, map(str.strip, spec.split(";"))):
            tenant, found, words = part.partition(":")
            tenant = tenant.strip()
            try:
                if tenant != EVERYBODY:
                    check_id(tenant, "tenant")
                if not found or tenant in limits:
                    raise ValueError("not `tenant: name=value ..`, each tenant once")
                limits[tenant] = _limit(words)
            except (CallerError, ValueError) as error:
                raise SettingsError(f"{PREFIX}TENANT_LIMITS: {part!r}: {error}") from error
        return cls(limits)

    def of(self, tenant: TenantId) -> TenantLimit:
        return self.by_tenant.get(tenant) or self.by_tenant.get(EVERYBODY) or TenantLimit()


def read_promises(headers: Mapping[str, str], limit: TenantLimit) -> Promises:
    """Raises BadInput, which names the header and the limit."""
    level = limit.level if limit.level > NORMAL else NORMAL
    given = headers.get(PRIORITY, "").strip().lower()
    if given:
        if given not in LEVELS:
            raise _bad(PRIORITY, f"{given[:32]!r} is none of {', '.join(LEVELS)}")
        level = LEVELS.index(given)
    if level < limit.level:
        raise _denied(PRIORITY, f"{given} is above {LEVELS[limit.level]}")
    return Promises(
        level=level,
        weight=limit.weight,
        slo_ttft_s=_seconds(headers, SLO_TTFT, limit.ttft_s),
        slo_tbt_s=_seconds(headers, SLO_TBT, limit.tbt_s),
        deadline_s=_seconds(headers, DEADLINE, 0.0),
    )


def _seconds(headers: Mapping[str, str], name: str, least_s: float) -> float:
    """0.0 when not given."""
    given = headers.get(name, "").strip()
    if not given:
        return 0.0
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= SECONDS_MAX:
        raise _bad(name, f"{given[:32]!r} is no number of seconds up to {SECONDS_MAX:g}")
    if seconds < least_s:
        raise _denied(name, f"{seconds:g} s is tighter than {least_s:g} s")
    return seconds


def _limit(words: str) -> TenantLimit:
    values: dict[str, str] = {}
    for word in words.split():
        name, found, value = word.partition("=")
        if not found or name not in ("weight", "priority", "ttft", "tbt") or name in values:
            raise ValueError(f"{word!r} is none of weight=, priority=, ttft=, tbt=")
        values[name] = value
    priority = values.get("priority", LEVELS[NORMAL])
    if priority not in LEVELS:
        raise ValueError(f"priority={priority} is none of {', '.join(LEVELS)}")
    weight = float(values.get("weight", "1"))
    ttft_s, tbt_s = float(values.get("ttft", "0")), float(values.get("tbt", "0"))
    if not 1.0 / WEIGHT_MAX <= weight <= WEIGHT_MAX:
        raise ValueError(f"weight={weight:g} must lie in [{1 / WEIGHT_MAX:g}, {WEIGHT_MAX:g}]")
    if not 0.0 <= ttft_s <= SECONDS_MAX or not 0.0 <= tbt_s <= SECONDS_MAX:
        raise ValueError("ttft and tbt are seconds from 0 on")
    return TenantLimit(weight, LEVELS.index(priority), ttft_s, tbt_s)


def _bad(header: str, what: str) -> BadInput:
    return BadInput(f"{header}: {what}", param=header)


def _denied(header: str, what: str) -> BadInput:
    return BadInput(
        f"{header}: {what}, the limit of this API key", param=header, code="not_allowed", status=403
    )
