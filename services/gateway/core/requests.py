"""What one request says to conductors and instances, from its job and its text so far."""

from collections.abc import Iterable

from moonpool.messages.decode import ReserveReply, ReserveRequest
from moonpool.messages.ids import InstanceId
from moonpool.messages.plan import Plan, PlanRequest
from moonpool.messages.prefill import SubmitRequest
from services.gateway.core.job import Job, Text


def plan_request(
    job: Job, text: Text, attempt: int, exclude: Iterable[InstanceId], probe: bool = False
) -> PlanRequest:
    """Once tokens were given, the promise of a first one has been kept."""
    return PlanRequest(
        request=job.request,
        tenant=job.tenant,
        model=job.model,
        fingerprint=job.fingerprint,
        keys=text.packed_keys(),
        prompt_tokens=text.length,
        max_tokens=text.left,
        attempt=attempt,
        exclude=tuple(sorted(exclude)),
        slo_ttft_s=0.0 if text.output else job.promises.slo_ttft_s,
        slo_tbt_s=job.promises.slo_tbt_s,
        level=job.promises.level,
        probe=probe,
    )


def reserve_request(job: Job, text: Text, attempt: int, ttl_s: float) -> ReserveRequest:
    return ReserveRequest(
        request=job.request,
        attempt=attempt,
        tenant=job.tenant,
        fingerprint=job.fingerprint,
        keys=text.packed_keys(),
        prompt_tokens=text.length,
        max_tokens=text.left,
        ttl_s=ttl_s,
    )


def submit_request(
    job: Job,
    text: Text,
    attempt: int,
    plan: Plan,
    reservation: ReserveReply | None,
    deadline_s: float,
    start_by_s: float,
) -> SubmitRequest:
    return SubmitRequest(
        request=job.request,
        attempt=attempt,
        tenant=job.tenant,
        model=job.model,
        fingerprint=job.fingerprint,
        root=job.root,
        keys=text.packed_keys(),
        tokens=text.tokens().tobytes(),
        output_start=len(job.prompt),
        sampling=job.sampling,
        plan=plan,
        reservation=reservation,
        deadline_s=deadline_s,
        level=job.promises.level,
        weight=job.promises.weight,
        start_by_s=start_by_s,
    )
