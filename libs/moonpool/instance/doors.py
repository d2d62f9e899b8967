"""What an instance answers: prompts (`submit`), places (`reserve`, `start`), ends (`cancel`)."""

import asyncio
import math

import numpy as np

from moonpool.bus import Endpoint, Handler
from moonpool.instance.core import InstanceCore
from moonpool.instance.links import Links
from moonpool.instance.prompts import Prompts
from moonpool.instance.sequence import Phase, Sequence
from moonpool.kv import unpack_keys
from moonpool.messages import CallerError, CapacityError, CorruptionError, PeerError
from moonpool.messages.advice import DUTIES, RoleReply, RoleRequest
from moonpool.messages.codec import decode, encode
from moonpool.messages.decode import ReserveReply, ReserveRequest, StartReply, StartRequest
from moonpool.messages.errors import ErrorInfo
from moonpool.messages.prefill import (
    LEVELS,
    WEIGHT_MAX,
    CancelReply,
    CancelRequest,
    SubmitReply,
    SubmitRequest,
)
from moonpool.messages.sampling import SamplingParams
from moonpool.messages.segments import RegionGrant
from moonpool.telemetry import names

WITHDRAW_S = 1.0
GRANT_MARGIN_S = 10.0  # a transfer begun just before a reservation ends may still finish


class Doors:
    """Handlers over one core. `fingerprint` is our model's: a request for another is refused."""

    def __init__(
        self,
        links: Links,
        core: InstanceCore,
        prompts: Prompts,
        wake: asyncio.Event,
        fingerprint: bytes,
    ) -> None:
        self._links = links
        self._core = core
        self._prompts = prompts
        self._wake = wake
        self._fingerprint = fingerprint
        self._grants: dict[tuple[str, int], tuple[Sequence, RegionGrant]] = {}
        self.draining = False
        self.duty = "both" if links.ctx.role == "colocated" else ""

    def prefill(self) -> list[Endpoint]:
        return self._endpoints(
            "prefill", {"submit": self._submit, "cancel": self._cancel, "ping": self._ping}
        )

    def decode(self) -> list[Endpoint]:
        return self._endpoints(
            "decode",
            {
                "reserve": self._reserve,
                "start": self._start,
                "cancel": self._cancel,
                "ping": self._ping,
            },
        )

    def role(self) -> Endpoint:
        """Of colocated instances: what new work they take."""
        links = self._links
        return Endpoint("role", links.ctx.subjects.role(links.ctx.id), self._set_role)

    def _endpoints(self, role: str, handlers: dict[str, Handler]) -> list[Endpoint]:
        subjects, id = self._links.ctx.subjects, self._links.ctx.id
        subject = subjects.prefill if role == "prefill" else subjects.decode
        return [Endpoint(f"{role}-{v}", subject(id, v), h) for v, h in handlers.items()]

    async def sweep(self) -> None:
        """Takes grants back from reservations that are over; called with each load report. Once no
        peer can touch the bytes any more, their blocks need no quarantine."""
        over = [(id, *held) for id, held in self._grants.items() if not _holds_place(held[0])]
        for id, _, _ in over:
            del self._grants[id]
        await asyncio.gather(*(self._lock_out(seq, grant) for _, seq, grant in over))

    async def _lock_out(self, seq: Sequence, grant: RegionGrant) -> None:
        try:
            await self._links.memory.region.withdraw(grant, WITHDRAW_S)
        except PeerError as error:
            # a stopped writer may still be inside: the quarantine runs its course
            self._links.ctx.log.warning(
                "writer not locked out request=%s error=%s", seq.request, error
            )
        else:
            self._core.writer_stopped(seq, self._links.ctx.clock.now())

    # -- handlers ---------------------------------------------------------------------------

    async def _ping(self, _: bytes) -> bytes:
        return b""

    async def _submit(self, payload: bytes) -> bytes:
        request = decode(payload, SubmitRequest)
        try:
            self._check(request.fingerprint, request.model)
            self._check_duty("decode" if request.reservation is not None else "both")
            if self._core.find(request.request, request.attempt) is not None:
                return encode(SubmitReply())  # a repeated message
            seq = self._sequence(request)
            self._core.submit(seq, self._links.ctx.clock.now())
        except (CapacityError, CallerError) as error:
            return encode(SubmitReply(error.info()))
        self._prompts.add(seq, request)
        self._wake.set()
        return encode(SubmitReply())

    async def _reserve(self, payload: bytes) -> bytes:
        request = decode(payload, ReserveRequest)
        now_s = self._links.ctx.clock.now()
        seq = Sequence(
            request.request,
            request.attempt,
            request.tenant,
            root=b"",
            keys=unpack_keys(request.keys),
            block_tokens=self._links.memory.layout.block_tokens,
            prompt_tokens=request.prompt_tokens,
            output_start=request.prompt_tokens,
            sampling=SamplingParams(),
            deadline_s=now_s + request.ttl_s,
        )
        try:
            self._check(request.fingerprint, "")
            self._check_duty("prefill")
            if self._core.find(*seq.id) is not None:
                raise CallerError("this request holds a place already", code="duplicate_request")
            have = self._core.reserve(seq, now_s)
        except (CapacityError, CallerError) as error:
            return encode(ReserveReply(refusal=error.info()))
        grant = self._links.memory.region.grant("w", ttl_s=request.ttl_s + GRANT_MARGIN_S)
        self._grants[seq.id] = (seq, grant)
        return encode(
            ReserveReply(
                decode=self._links.ctx.id, blocks=tuple(seq.blocks), have_blocks=have, grant=grant
            )
        )

    async def _start(self, payload: bytes) -> bytes:
        request = decode(payload, StartRequest)
        seq = self._core.find(request.request, request.attempt)
        if seq is None or not _holds_place(seq):
            running = seq is not None and seq.phase in (Phase.RUNNING, Phase.CLOSING)
            return encode(StartReply() if running else StartReply(refusal=_NO_PLACE))
        tokens = np.frombuffer(request.tokens, "<i4")
        if len(tokens) != seq.prompt_tokens:
            return encode(StartReply(refusal=_OTHER_PROMPT))
        bad = await self._verify(seq, request.checksums)
        if bad:
            self._links.ctx.metrics.counter(names.BLOCKS_CORRUPT, "decode").inc(len(bad))
            self._links.ctx.log.error(
                "blocks arrived corrupt request=%s blocks=%s", seq.request, bad
            )
            error = CorruptionError(f"{len(bad)} blocks arrived with wrong checksums")
            return encode(StartReply(refusal=error.info(), bad_blocks=tuple(bad)))
        if not _holds_place(seq):  # ended while we looked
            return encode(StartReply(refusal=_NO_PLACE))
        now_s = self._links.ctx.clock.now()
        seq.root = request.root
        seq.output_start = request.output_start
        seq.sampling = request.sampling
        seq.store = request.store
        seq.deadline_s = now_s + request.deadline_s
        seq.set_tokens(tokens, min(request.sampling.max_tokens, 4096) + 1)
        self._core.join(seq, request.first_token)
        self._revoke(seq)
        self._wake.set()
        return encode(StartReply())

    async def _cancel(self, payload: bytes) -> bytes:
        request = decode(payload, CancelRequest)
        seq = self._core.find(request.request, request.attempt)
        if request.only_waiting and (seq is None or not seq.not_begun):
            return encode(CancelReply(ended=False))
        if seq is not None:
            now_s = self._links.ctx.clock.now()
            self._core.end(seq, None, now_s)
            if request.writer_stopped:
                self._core.writer_stopped(seq, now_s)
                self._revoke(seq)
            self._prompts.drop(seq)
            self._wake.set()
        return encode(CancelReply(ended=True)) if request.only_waiting else b""

    # -- inside -----------------------------------------------------------------------------

    def _check(self, fingerprint: bytes, model: str) -> None:
        if fingerprint != self._fingerprint:
            raise CallerError(
                f"instance {self._links.ctx.id} serves another model or layout than {model!r}",
                code="fingerprint_mismatch",
                elsewhere=True,
            )
        if self.draining:
            raise CapacityError("the instance is draining", code="draining", elsewhere=True)

    def _check_duty(self, unfit: str) -> None:
        """A conductor that has not heard yet what we do may send what is not for us. `unfit`: the
        duty that cannot take it; "both": all but the one that does both."""
        if self.duty and (self.duty != "both" if unfit == "both" else self.duty == unfit):
            raise CapacityError(
                f"the instance takes {self.duty} work only", code="no_capacity", elsewhere=True
            )

    async def _set_role(self, payload: bytes) -> bytes:
        request = decode(payload, RoleRequest)
        if request.duty not in DUTIES:
            told = f"duty {request.duty[:32]!r} is none of {', '.join(DUTIES)}"
            return encode(RoleReply(self.duty, CallerError(told).info()))
        if request.duty != self.duty:
            self._links.ctx.log.info("duty=%s before=%s", request.duty, self.duty)
        self.duty = request.duty
        return encode(RoleReply(self.duty))

    def _sequence(self, request: SubmitRequest) -> Sequence:
        tokens = np.frombuffer(request.tokens, "<i4")
        if len(tokens) == 0:
            raise CallerError("a prompt needs at least one token")
        if request.reservation is None and request.plan.decode != self._links.ctx.id:
            raise CallerError("a prompt that is decoded elsewhere needs a reservation there")
        block_tokens = self._links.memory.layout.block_tokens
        now_s = self._links.ctx.clock.now()
        seq = Sequence(
            request.request,
            request.attempt,
            request.tenant,
            root=request.root,
            keys=unpack_keys(request.keys)[: len(tokens) // block_tokens],
            block_tokens=block_tokens,
            prompt_tokens=len(tokens),
            output_start=request.output_start,
            sampling=request.sampling,
            deadline_s=now_s + request.deadline_s,
            store=request.plan.store,
            patience_s=request.plan.patience_s,
            level=min(max(request.level, 0), len(LEVELS) - 1),
            weight=min(max(request.weight, 1.0 / WEIGHT_MAX), WEIGHT_MAX),
            start_by_s=now_s + request.start_by_s if request.start_by_s > 0.0 else math.inf,
            decodes_here=request.reservation is None,
        )
        seq.set_tokens(tokens, min(request.sampling.max_tokens, 4096) + 1)
        return seq

    async def _verify(self, seq: Sequence, checksums: bytes) -> list[int]:
        """Indexes of blocks that are not what was promised, of those that were written to us."""
        layers = self._links.memory.layout.layers
        fresh = range(seq.matched_blocks, len(seq.blocks))
        if len(checksums) != 8 * layers * len(fresh):
            return list(fresh)
        loop = asyncio.get_running_loop()
        blocks = [seq.blocks[i] for i in fresh]
        bad = await loop.run_in_executor(self._links.helpers, self._look, blocks, checksums)
        for i, key in enumerate(seq.keys[seq.matched_blocks :]):
            if not bad:
                self._links.sums.put(key, checksums[8 * layers * i : 8 * layers * (i + 1)])
        return [fresh[i] for i in bad]

    def _look(self, blocks: list[int], checksums: bytes) -> list[int]:
        memory = self._links.memory
        layers = range(memory.layout.layers)
        size = 8 * len(layers)
        bad = [
            i
            for i, block in enumerate(blocks)
            if memory.bad_layers(block, layers, checksums[size * i : size * (i + 1)])
        ]
        if not bad:
            memory.bring_in(blocks, layers)
        return bad

    def _revoke(self, seq: Sequence) -> None:
        held = self._grants.pop(seq.id, None)
        if held is not None:
            self._links.memory.region.revoke(held[1])


def _holds_place(seq: Sequence) -> bool:
    return seq.phase is Phase.RESERVED


_NO_PLACE = CapacityError("no place is held for this request", code="no_place").info()
_OTHER_PROMPT: ErrorInfo = CallerError("the place is held for another prompt").info()
