"""The simulated mesh: the real conductor core among modelled instances and links.

A gateway's part is played here too: it asks for a plan, reserves at the decode, submits to the
prefill. Load reports and block events reach the core as they do on the bus, only on virtual time.
"""

import time
from collections.abc import Callable
from random import Random

from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import InstanceId, OwnerId, RequestId, TenantId
from moonpool.messages.load import (
    AnswerSample,
    LoadReport,
    TransferSample,
    request_tag,
)
from moonpool.messages.plan import Plan, PlanRequest
from moonpool.messages.registry import Heartbeat, ModelRecord, Registration
from services.conductor.core import ConductorCore, Policy
from services.conductor.simulate.serve.agenda import Agenda
from services.conductor.simulate.serve.cache import BlockCache
from services.conductor.simulate.serve.decode import Answer, DecodeModel
from services.conductor.simulate.serve.disk import DiskModel
from services.conductor.simulate.serve.links import Links
from services.conductor.simulate.serve.machine import Machine
from services.conductor.simulate.serve.outcome import Outcome, Result, Sample
from services.conductor.simulate.serve.prefill import Job, PrefillModel
from services.conductor.simulate.serve.reports import EPOCH, decode_report, prefill_report
from services.conductor.simulate.serve.setup import Setup
from services.conductor.simulate.serve.traffic import Ask, Traffic

ATTEMPTS_MAX = 3  # plans asked for when decodes refuse
REPORT_MIN_S = 0.1  # between two load reports of one instance
REPORT_MAX_S = 1.0
TICK_S = 0.5
SAMPLE_S = 1.0
HOP_S = 1e-3  # a message on the bus
_HOT_BLOCKS = 100


class World:
    """One run. `run` plays all of the traffic and returns what came of it."""

    def __init__(self, setup: Setup, machine: Machine, traffic: Traffic) -> None:
        self.setup = setup
        self.machine = machine
        self.traffic = traffic
        self.agenda = Agenda()
        self.dice = Random(f"world:{setup.seed}")
        self.core = ConductorCore(
            Policy(
                setup.slo_ttft_s,
                setup.slo_tbt_s,
                suspect_after_s=5.0,
                dead_after_s=30.0,
                scheduling=setup.policy,
                admission=setup.admission,
                second_look=setup.second_look,
                balancing_threshold=setup.threshold,
            ),
            rotation=setup.seed,
        )
        self.links = Links(self.agenda, machine.link.bytes_per_s, machine.link.latency_s)
        self.model = ModelRecord(
            "model",
            b"f" * 32,
            "{}",
            machine.block_tokens,
            machine.block_bytes,
            80,
            1 << 20,
            "bfloat16",
        )
        self.prefills: dict[str, PrefillModel] = {}
        self.decodes: dict[str, DecodeModel] = {}
        self.disks: dict[str, DiskModel] = {}
        self._transfers: dict[str, list[TransferSample]] = {}
        self._answers: dict[str, list[AnswerSample]] = {}
        self._seqs: dict[str, int] = {}
        self._event_seqs: dict[str, int] = {}
        self._reported_s: dict[str, float] = {}
        self._report_due: set[str] = set()
        self.outcomes = [
            Outcome(a.arrived_s, a.prompt_tokens, a.output_tokens) for a in traffic.asks
        ]
        self.samples: list[Sample] = []
        self._handed: dict[int, tuple[Job, list[bool]]] = {}
        self._open = len(traffic.asks)
        self._build()

    # -- running

    def run(self, progress: Callable[[float], None] = lambda share: None) -> Result:
        """All of the traffic. `progress` hears the share of requests that ended, now and then."""
        started = time.perf_counter()
        asks, agenda = self.traffic.asks, self.agenda
        first_s = asks[0].arrived_s if asks else 0.0
        for ask in asks:
            agenda.at(ask.arrived_s - first_s + 1.0, self._arrive, ask)
        agenda.at(0.0, self._tick)
        agenda.at(0.0, self._sample)
        told = 0
        while self._open and agenda.step():
            if agenda.done - told > 20_000:
                told = agenda.done
                progress(1.0 - self._open / max(1, len(asks)))
        progress(1.0)
        return self._result(time.perf_counter() - started)

    def _build(self) -> None:
        for number in range(self.setup.prefills):
            if self.machine.node.nvme_tokens:
                self._add_disk(f"n{number:02}", f"host-p{number:02}")
            self._add_prefill(f"p{number:02}")
        for number in range(self.setup.decodes):
            self._add_decode(f"d{number:02}")

    def _add_prefill(self, id: str) -> None:
        blocks_max = self.machine.prefill.cache_tokens // self.machine.block_tokens
        cache = BlockCache(
            blocks_max, self.setup.eviction, lambda new, gone: self._tell(id, new, gone)
        )
        self.prefills[id] = PrefillModel(
            id,
            self.machine,
            cache,
            self.agenda,
            Random(f"{id}:{self.setup.seed}"),
            self._computed,
            self._begun,
            self._changed,
            lambda gone: self._demote(id, gone),
        )
        self._join(id, "prefill", f"host-{id}")

    def _add_disk(self, id: str, host: str) -> None:
        blocks_max = self.machine.node.nvme_tokens // self.machine.block_tokens
        cache = BlockCache(
            blocks_max, self.setup.eviction, lambda new, gone: self._tell(id, new, gone, "nvme")
        )
        self.disks[id] = DiskModel(id, self.machine.node, cache, self.agenda)
        self._join(id, "store", host)

    def _demote(self, id: str, gone: list[int]) -> None:
        disk = self.disks.get("n" + id[1:])
        if disk:
            disk.keep(gone, self.machine.block_bytes)

    def _add_decode(self, id: str) -> None:
        self.decodes[id] = DecodeModel(id, self.machine, self.agenda, self._ended, self._changed)
        self._join(id, "decode", f"host-{id}")

    def _join(self, id: str, role: str, host: str) -> None:
        model = None if role == "store" else self.model
        registration = Registration(id, role, EPOCH, 1.0, host, "1", model=model)
        self.core.heartbeat(Heartbeat(registration, "ready"), 0.0)
        owner = OwnerId(id)
        self.core.holdings.begin_snapshot(owner)
        self.core.holdings.apply_page(SnapshotPage(owner, EPOCH, 0, {}), EPOCH)
        self._transfers[id] = []
        self._report(id)

    # -- what instances say

    def _tell(self, id: str, stored: list[int], removed: list[int], tier: str = "hbm") -> None:
        seq = self._event_seqs[id] = self._event_seqs.get(id, 0) + 1
        packed = self.traffic.packed
        event = KvEvents(OwnerId(id), EPOCH, seq, tier, packed(stored), packed(removed))
        self.core.events(event)

    def _changed(self, id: str) -> None:
        """Something changed: a report follows, but not more often than on the real bus."""
        if id in self._report_due:
            return
        self._report_due.add(id)
        self.agenda.at(self._reported_s.get(id, 0.0) + REPORT_MIN_S, self._report, id)

    def _report(self, id: str) -> None:
        self._report_due.discard(id)
        now_s = self.agenda.now_s
        self._reported_s[id] = now_s
        seq = self._seqs[id] = self._seqs.get(id, 0) + 1
        transfers, self._transfers[id] = self._transfers[id], []
        prefill, disk = self.prefills.get(id), self.disks.get(id)
        if prefill:
            report = prefill_report(id, seq, prefill, transfers, self.machine)
        elif disk:
            used, total = len(disk.cache.here), disk.cache.blocks_max
            report = LoadReport(id, EPOCH, seq, tiers={"nvme": (used, total)})
        else:
            answers, self._answers[id] = self._answers.get(id, []), []
            noise = max(0.2, self.dice.gauss(1.0, self.machine.noise))
            report = decode_report(id, seq, self.decodes[id], transfers, answers, noise)
        self.core.load(report, now_s)

    def _tick(self) -> None:
        now_s = self.agenda.now_s
        for id in (*self.prefills, *self.decodes, *self.disks):
            if now_s - self._reported_s[id] >= REPORT_MAX_S - TICK_S / 2:
                self._report(id)
        self.core.tick(now_s)
        self.agenda.after(TICK_S, self._tick)

    def _sample(self) -> None:
        self.samples.append(
            Sample(
                self.agenda.now_s - 1.0,
                [prefill.queue_s() for prefill in self.prefills.values()],
                [decode.step_s() for decode in self.decodes.values()],
                [decode.batch for decode in self.decodes.values()],
            )
        )
        if self.setup.checked:
            self.check()
        self.agenda.after(SAMPLE_S, self._sample)

    # -- a request's way

    def _arrive(self, ask: Ask) -> None:
        outcome = self.outcomes[ask.number]
        refused: list[InstanceId] = []
        for attempt in range(ATTEMPTS_MAX):
            reply = self.core.plan(
                PlanRequest(
                    RequestId(str(ask.number)),
                    TenantId(ask.tenant),
                    "model",
                    self.model.fingerprint,
                    self.traffic.packed(ask.blocks),
                    ask.prompt_tokens,
                    4096,
                    attempt,
                    tuple(refused),
                ),
                self.agenda.now_s,
            )
            if reply.refusal:
                return self._refuse(outcome, reply.refusal.code)
            plan = reply.plan
            assert plan is not None, "a reply is a plan or a refusal"
            tokens = ask.prompt_tokens + ask.output_tokens
            blocks = tokens // self.machine.block_tokens + 1
            if self.decodes[plan.decode].reserve(ask.number, blocks):
                self._changed(plan.decode)
                outcome.predicted_ttft_s = plan.predicted_ttft_s
                self.agenda.after(2 * HOP_S, self._submit, ask, plan)
                return None
            refused.append(plan.decode)
        return self._refuse(outcome, "kv_space")

    def _refuse(self, outcome: Outcome, code: str) -> None:
        outcome.refused = code
        self._open -= 1

    def _submit(self, ask: Ask, plan: Plan) -> None:
        outcome = self.outcomes[ask.number]
        outcome.prefill, outcome.decode = plan.prefill, plan.decode
        prefill = self.prefills[plan.prefill]
        now_s = self.agenda.now_s
        job = prefill.submit(ask, plan, now_s + plan.patience_s)
        for run in plan.runs:
            if str(run.owner) != str(plan.prefill):
                self._fetch(job, prefill, run.owner, run.start, run.end)
        prefill.enqueue(job)
        self._changed(plan.prefill)

    def _fetch(self, job: Job, prefill: PrefillModel, owner: str, start: int, end: int) -> None:
        """Blocks of another's pool, while the prompt waits. Evicted ones are not sent."""
        disk = self.disks.get(owner)
        cache = disk.cache if disk else self.prefills[owner].cache
        blocks = job.ask.blocks[start:end]
        job.runs_left += 1
        if not cache.holds(blocks):
            self.agenda.after(HOP_S, prefill.arrived, job, start, end, False)
            return
        now_s = self.agenda.now_s
        cache.touch(blocks, now_s)
        size_bytes = len(blocks) * self.machine.block_bytes
        self.outcomes[job.ask.number].fetched_tokens += len(blocks) * self.machine.block_tokens

        def done() -> None:
            took_s = self.agenda.now_s - now_s
            tier = "nvme" if disk else "hbm"
            sample = TransferSample(owner, prefill.id, tier, size_bytes, took_s)
            self._transfers[prefill.id].append(sample)
            prefill.arrived(job, start, end, True)

        if disk:
            source = "p" + owner[1:]  # they share a host
            disk.read(size_bytes, lambda: self.links.move(source, prefill.id, size_bytes, done))
        else:
            self.links.move(owner, prefill.id, size_bytes, done)

    def _begun(self, job: Job) -> None:
        """Its first chunk runs: KV begins to flow to the decode, layer by layer."""
        outcome = self.outcomes[job.ask.number]
        outcome.reused_tokens = job.reused_blocks * self.machine.block_tokens
        outcome.queue_s = self.agenda.now_s - job.submitted_s
        size_bytes = job.ask.prompt_tokens * self.machine.kv_bytes_per_token
        flags = [False, False]  # computed, moved
        self._handed[job.ask.number] = (job, flags)
        self.links.move(
            job.plan.prefill,
            job.plan.decode,
            size_bytes,
            lambda: self._half_done(job.ask.number, 1),
        )

    def _computed(self, job: Job) -> None:
        """The first token is there."""
        outcome = self.outcomes[job.ask.number]
        outcome.ttft_s = self.agenda.now_s - 1.0 - outcome.arrived_s + self._first_s()
        outcome.compute_s = job.compute_s
        self._half_done(job.ask.number, 0)

    def _first_s(self) -> float:
        return self.traffic.asks[0].arrived_s

    def _half_done(self, number: int, which: int) -> None:
        job, flags = self._handed[number]
        flags[which] = True
        if all(flags):
            del self._handed[number]
            self._hand_over(job)

    def _hand_over(self, job: Job) -> None:
        """All KV is at the decode, which looks at its promise once more."""
        ask = job.ask
        decode, outcome = self.decodes[job.plan.decode], self.outcomes[ask.number]
        late = decode.step_s(1, ask.prompt_tokens) > self.setup.slo_tbt_s
        if late and self.setup.second_look:
            decode.release(ask.number)
            outcome.wasted = "tbt"
            self._open -= 1
            self._over(decode.id, ask, 0)
            self._changed(decode.id)
            return
        decode.join(ask.number, ask.prompt_tokens, ask.output_tokens - 1)

    def _ended(self, answer: Answer, tbt_s: float) -> None:
        outcome = self.outcomes[answer.request]
        ask = self.traffic.asks[answer.request]
        self._over(outcome.decode, ask, ask.output_tokens)
        outcome.tbt_s = tbt_s
        outcome.ended_s = self.agenda.now_s
        self._open -= 1

    def _over(self, decode: str, ask: Ask, tokens: int) -> None:
        """The decode's next report says that this answer ended."""
        sample = AnswerSample(request_tag(str(ask.number)), ask.tenant, tokens)
        self._answers.setdefault(decode, []).append(sample)

    # -- looking in

    def _result(self, wall_s: float) -> Result:
        setup = self.setup
        return Result(
            setup.policy,
            setup.admission,
            setup.prefills,
            setup.decodes,
            setup.seed,
            1.0,
            setup.slo_ttft_s,
            setup.slo_tbt_s,
            self.outcomes,
            self.samples,
            {id: prefill.busy_s for id, prefill in self.prefills.items()},
            self._replicas(),
            self.links.moved_bytes,
            wall_s,
            self.core.stats(),
        )

    def _replicas(self) -> float:
        """Mean number of prefills that hold one of the most used blocks."""
        uses: dict[int, int] = {}
        for ask in self.traffic.asks:
            for block in ask.blocks:
                uses[block] = uses.get(block, 0) + 1
        hot = sorted(uses, key=lambda block: (-uses[block], block))[:_HOT_BLOCKS]
        held = sum(block in p.cache.here for block in hot for p in self.prefills.values())
        return held / max(1, len(hot))

    def check(self) -> None:
        """All invariants of all parts."""
        self.core.check()
        self.links.check()
        for prefill in self.prefills.values():
            prefill.check()
        for decode in self.decodes.values():
            decode.check()
        for disk in self.disks.values():
            disk.check()
