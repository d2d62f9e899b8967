"""The account of one request: what happened when, as audit and metrics tell it."""

from moonpool.messages.audit import (
    AttemptV1,
    AuditEventV1,
    CachedTokensV1,
    Outcome,
    StageTimingsV1,
)
from services.gateway.core.errors import ApiError
from services.gateway.core.lifecycle import Facts

TIERS = ("hbm", "dram", "nvme", "oss")


class Account:
    def __init__(self, endpoint: str, now_s: float) -> None:
        self.endpoint = endpoint
        self.started_s = now_s
        self.request_id = ""
        self.tenant = ""  # "" until the key was checked
        self.model = ""
        self.stream = False
        self.status = 200
        self.outcome: Outcome = "ok"
        self.code = ""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.block_tokens = 0
        self.block_names = ""
        self.facts = Facts()
        self.plan_sent_s: float | None = None
        self.plan_s: float | None = None  # waiting for plans, all attempts
        self.first_plan_s: float | None = None  # when the first one came
        self.first_s: float | None = None
        self.last_s: float | None = None  # of the latest tokens
        self.gap_max_s = 0.0

    def plan_sent(self, now_s: float) -> float | None:
        """Seconds from request in, at the first plan only."""
        if self.plan_sent_s is not None:
            return None
        self.plan_sent_s = now_s
        return now_s - self.started_s

    def planned(self, seconds: float, now_s: float) -> None:
        self.plan_s = (self.plan_s or 0.0) + seconds
        if self.first_plan_s is None:
            self.first_plan_s = now_s

    def gave(self, tokens: int, now_s: float) -> float | None:
        """`tokens` > 0 came. Mean seconds per token since the ones before; None for the first."""
        previous = self.last_s
        self.last_s = now_s
        self.completion_tokens += tokens
        if previous is None:
            self.first_s = now_s
            return None
        self.gap_max_s = max(self.gap_max_s, now_s - previous)
        return (now_s - previous) / tokens

    def failed(self, error: ApiError) -> None:
        self.status = error.status
        self.code = error.code
        started = self.completion_tokens > 0
        refused = error.status == 429 or (400 <= error.status < 500 and not started)
        self.outcome = "refused" if refused else "error"

    def cancelled(self) -> None:
        self.outcome, self.code, self.status = "cancelled", "client_gone", 499

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def forecast(self) -> tuple[float, float] | None:
        """(predicted, actual) seconds from the first plan to the first token; None: either is
        missing. A request that was planned anew counts with its first prediction."""
        plans = self.facts.plans
        if self.first_s is None or self.first_plan_s is None or not plans:
            return None
        return plans[0].predicted_ttft_s, self.first_s - self.first_plan_s

    @property
    def cached_tokens(self) -> int:
        return min(self.prompt_tokens, sum(self.facts.cached.values()))

    def event(self, event_id: str, gateway: str, now_s: float, unix_s: float) -> AuditEventV1:
        """The audit event at the end of the request."""
        cached = {tier: max(0, self.facts.cached.get(tier, 0)) for tier in TIERS}
        plans = self.facts.plans
        attempts = [
            AttemptV1(
                prefill=plan.prefill,
                decode=plan.decode,
                error_code=self.facts.failures[at] if at < len(self.facts.failures) else "",
            )
            for at, plan in enumerate(plans)
        ]
        return AuditEventV1(
            event_id=event_id,
            unix_s=unix_s,
            gateway=gateway,
            tenant=self.tenant,
            request_id=self.request_id,
            endpoint=self.endpoint,
            model=self.model,
            stream=self.stream,
            outcome=self.outcome,
            code=self.code,
            http_status=self.status,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=CachedTokensV1(**cached),
            timings=self._timings(now_s),
            predicted_ttft_s=plans[0].predicted_ttft_s if plans else None,
            attempts=attempts,
            block_tokens=self.block_tokens,
            block_names=self.block_names,
        )

    def _timings(self, now_s: float) -> StageTimingsV1:
        told = list(self.facts.timings.values())
        mean_s = None
        if self.first_s is not None and self.last_s is not None and self.completion_tokens > 1:
            mean_s = (self.last_s - self.first_s) / (self.completion_tokens - 1)
        return StageTimingsV1(
            plan_s=self.plan_s,
            queue_s=sum(each.queue_s for each in told) if told else None,
            fetch_s=sum(each.fetch_s for each in told) if told else None,
            compute_s=sum(each.compute_s for each in told) if told else None,
            transfer_s=sum(each.transfer_s for each in told) if told else None,
            ttft_s=self.ttft_s,
            tbt_mean_s=mean_s,
            tbt_max_s=None if mean_s is None else self.gap_max_s,
            total_s=max(0.0, now_s - self.started_s),
        )
