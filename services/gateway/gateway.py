"""What the routes and the process around them share: who may ask, for what, and how it is asked."""

import math
import secrets
import uuid
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from moonpool.kv import BlockKey, block_keys, chain_root, isolation_salt
from moonpool.messages.ids import RequestId, TenantId
from moonpool.messages.registry import ModelRecord
from moonpool.runtime import Change, ChangeKind, Members, ServiceContext
from moonpool.settings import GatewaySettings
from moonpool.telemetry import names
from services.gateway.audit import Audit
from services.gateway.background import Background
from services.gateway.core import fleet
from services.gateway.core.account import Account
from services.gateway.core.blocks import block_names
from services.gateway.core.errors import BadInput, NotFound, Refused, Unavailable
from services.gateway.core.fields import ChatBody, CommonBody, CompletionBody
from services.gateway.core.forecast import Forecast
from services.gateway.core.job import Job
from services.gateway.core.lifecycle import Limits
from services.gateway.core.params import sampling_of
from services.gateway.core.promises import NO_PROMISES, Promises, TenantLimits
from services.gateway.core.tenants import Tenants, secret_bytes
from services.gateway.flight import Mesh
from services.gateway.text_model import TextModel
from services.gateway.tokenizing import Tokenizing

RUNNING_MAX = 4096  # requests between in and out

Prompt = tuple[NDArray[np.int32], tuple[BlockKey, ...]]  # tokens, keys of the full blocks


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as tokens and blocks."""

    record: ModelRecord
    text: TextModel
    root: bytes
    tokens: NDArray[np.int32]
    keys: tuple[BlockKey, ...]  # of the full blocks

    @property
    def block_tokens(self) -> int:
        return self.record.block_tokens


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is understood, and may be sent."""

    body: CommonBody
    job: Job
    text: TextModel
    limits: Limits


class Gateway:
    def __init__(self, context: ServiceContext[GatewaySettings], members: Members) -> None:
        """Raises SettingsError on bad API keys."""
        settings = context.settings
        self.context = context
        self.members = members
        self.tenants = Tenants(settings.api_keys)
        self.limits = TenantLimits.read(settings.tenant_limits)
        self.background = Background()
        self.mesh = Mesh(context.bus, context.subjects, context.clock, self.background)
        self.audit = Audit(context.bus, context.subjects, context.metrics.counter(names.AUDIT_LOST))
        self.tokenizing = Tokenizing()
        self.model = settings.model_name  # as users ask for it; "" until it is known
        self.text: TextModel | None = None  # None until it is loaded
        self.draining = False
        self.running = 0  # requests between in and out
        self._secret = secret_bytes(settings.secret)
        self.forecast = Forecast()
        metrics = context.metrics
        for share in (0.5, 0.9):
            gauge = metrics.gauges(names.TTFT_ERROR).labels(str(share))
            gauge.follow(partial(self.forecast.quantile, share))
        metrics.gauge(names.REQUESTS_RUNNING).follow(lambda: float(self.running))
        self.mesh.plan_sent = metrics.histogram(names.GATEWAY_OVERHEAD_SECONDS).observe
        self.mesh.failed_over = lambda cause: metrics.counter(names.FAILOVERS, cause).inc()
        self.mesh.doubt = members.doubt
        if not self.tenants.open and not settings.secret:
            context.log.warning(
                "MOONPOOL_API_KEYS is set but MOONPOOL_SECRET is not: tenants' block keys differ, "
                "but whoever sees the bus could compute them"
            )

    def serve_model(self, name: str, text: TextModel) -> None:
        """The tokenizer is loaded: requests for `name` can be understood from now on."""
        self.model = self.context.settings.model_name or name
        self.text = text
        log = self.context.log
        log.info("tokenizer loaded", extra={"model": self.model, "vocabulary": text.vocab_size})
        if not text.has_chat_template:
            log.warning(
                "the model has no chat template: /v1/chat/completions refuses, completions work",
                extra={"model": self.model},
            )

    def missing(self) -> list[str]:
        """Why it cannot answer now; empty: it can."""
        if self.draining:
            return ["draining"]
        lacks = [] if self.context.bus.is_connected else ["no connection to NATS"]
        if self.text is None:
            lacks.append("the tokenizer is still loading")
        return lacks + fleet.missing(self.members.all(), self.model)

    def models(self) -> dict[str, float]:
        """Models that can be asked for here, and since when (unix seconds)."""
        served = fleet.models_of(self.members.all())
        known = self.text is not None and self.model in served
        return {self.model: served[self.model]} if known else {}

    def member_changed(self, change: Change) -> None:
        """Whoever left or started anew can give no more tokens."""
        if change.kind in (ChangeKind.LEFT, ChangeKind.FORGOTTEN):
            self.mesh.gone(change.member.id)
        elif change.kind is ChangeKind.SUSPECT or change.member.state == "draining":
            self.mesh.doubted(change.member.id)

    def admit(self) -> None:
        """Raises Refused when a request that has just been counted must go again."""
        if self.draining:
            raise Refused("this gateway is going down", code="draining", retry_after_s=1.0)
        if self.running > RUNNING_MAX:
            raise Refused(f"{RUNNING_MAX} requests run already", code="busy", retry_after_s=1.0)

    async def prepare(
        self, body: CommonBody, account: Account, promises: Promises = NO_PROMISES
    ) -> Prepared:
        """What the request means to the mesh. Raises ApiError."""
        settings = self.context.settings
        tenant = TenantId(account.tenant)
        read = await self.read_prompt(body, tenant)
        record, text, tokens = read.record, read.text, read.tokens
        account.prompt_tokens = len(tokens)
        if settings.audit_blocks:
            account.block_tokens = record.block_tokens
            account.block_names = block_names(read.keys)
        job = Job(
            request=_request_id(body),
            tenant=tenant,
            model=record.model,
            fingerprint=record.fingerprint,
            root=read.root,
            block_tokens=record.block_tokens,
            prompt=tokens,
            keys=read.keys,
            sampling=sampling_of(
                body, len(tokens), record.context_tokens, fallback_seed=secrets.randbits(63)
            ),
            promises=promises,
        )
        limits = Limits(
            deadline_s=account.started_s
            + min(settings.request_deadline_s, promises.deadline_s or math.inf),
            silence_s=settings.token_silence_s,
            attempts_max=settings.attempts_max,
            first_by_s=account.started_s + (promises.slo_ttft_s or math.inf),
        )
        return Prepared(body, job, text, limits)

    async def read_prompt(self, body: CommonBody, tenant: TenantId) -> ReadPrompt:
        """Tokenizes and names the blocks, as this tenant's. Raises ApiError."""
        text, record = self._find(body.model)
        salt = isolation_salt(self._secret, tenant, body.cache_salt or "")
        root = chain_root(record.fingerprint, salt)
        make = partial(_make_prompt, body, text, root, record.block_tokens)
        tokens, keys = await self.tokenizing.run(make, _chars(body))
        return ReadPrompt(record, text, root, tokens, keys)

    def ended(self, account: Account) -> None:
        """Counts and audits a request at its end."""
        now_s, metrics = self.context.clock.now(), self.context.metrics
        metrics.counters(names.REQUESTS).labels(account.endpoint, account.outcome).inc()
        if account.outcome == "refused":
            metrics.counters(names.REJECTIONS).labels(account.code or "other").inc()
        seconds = metrics.histograms(names.REQUEST_SECONDS).labels(account.endpoint)
        seconds.observe(now_s - account.started_s)
        if account.forecast is not None:
            ratio = self.forecast.note(*account.forecast)
            if ratio is not None:
                metrics.histogram(names.TTFT_RATIO).observe(ratio)
        if account.facts.accepted:
            metrics.counter(names.PROMPT_TOKENS).inc(account.prompt_tokens)
            metrics.counter(names.COMPLETION_TOKENS).inc(account.completion_tokens)
            metrics.histogram(names.PROMPT_LENGTH).observe(account.prompt_tokens)
            for tier, tokens in account.facts.cached.items():
                metrics.counters(names.CACHED_TOKENS).labels(tier).inc(tokens)
        if account.tenant:
            event = account.event(
                uuid.uuid4().hex, self.context.id, now_s, self.context.clock.unix()
            )
            self.audit.add(event)

    async def close(self, grace_s: float) -> None:
        """Waits for what outlives requests; what is left is cancelled."""
        await self.background.close(grace_s)
        self.tokenizing.close()

    def stats(self) -> dict[str, dict[str, int]]:
        return {
            "requests": {"running": self.running},
            "mesh": self.mesh.stats(),
            "background": self.background.stats(),
            "tokenizing": self.tokenizing.stats(),
            "audit": self.audit.stats(),
            "members": self.members.stats(),
        }

    def _find(self, model: str) -> tuple[TextModel, ModelRecord]:
        if self.text is None:
            raise Unavailable("the gateway is still loading its tokenizer", code="starting")
        if model != self.model:
            raise NotFound(
                f"the model {model[:200]!r} does not exist here; /v1/models lists what does",
                code="model_not_found",
                param="model",
            )
        record = fleet.record_of(self.members.all(), model)
        if record is None:
            raise Unavailable(
                f"no instance serves {model!r} now", code="no_instances", retry_after_s=2.0
            )
        return self.text, record


def _request_id(body: CommonBody) -> RequestId:
    prefix = "chatcmpl" if isinstance(body, ChatBody) else "cmpl"
    return RequestId(f"{prefix}-{uuid.uuid4().hex}")


def _chars(body: CommonBody) -> int:
    if isinstance(body, ChatBody):
        return sum(len(message.content) for message in body.messages)
    assert isinstance(body, CompletionBody)
    return len(body.prompt)


def _make_prompt(body: CommonBody, text: TextModel, root: bytes, block_tokens: int) -> Prompt:
    """Raises BadInput."""
    if isinstance(body, ChatBody):
        chat = [
            {"role": "system" if m.role == "developer" else m.role, "content": m.content}
            for m in body.messages
        ]
        tokens = text.encode(text.render(chat), special=False)
    else:
        assert isinstance(body, CompletionBody)
        tokens = _prompt_tokens(body.prompt, text)
    return tokens, tuple(block_keys(root, tokens, block_tokens))


def _prompt_tokens(prompt: str | list[int], text: TextModel) -> NDArray[np.int32]:
    if isinstance(prompt, str):
        tokens = text.encode(prompt, special=True)
    else:
        if not all(0 <= token < text.vocab_size for token in prompt):
            raise BadInput(f"prompt: token ids must lie in [0, {text.vocab_size})", param="prompt")
        tokens = np.array(prompt, dtype="<i4")
    if not len(tokens):
        raise BadInput("prompt: has no tokens", param="prompt")
    return tokens
