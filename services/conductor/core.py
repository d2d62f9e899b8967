"""The conductor's core: takes what members say and what gateways ask, with the time of it.

No I/O, no clock, no randomness: the shell and the simulator drive this very class.
"""

from collections.abc import Callable
from dataclasses import replace

from moonpool.kv import KEY_BYTES
from moonpool.messages.errors import CallerError, ErrorInfo
from moonpool.messages.events import KvEvents
from moonpool.messages.ids import InstanceId, NodeId, OwnerId
from moonpool.messages.load import LoadReport, request_tag
from moonpool.messages.plan import Plan, PlanReply, PlanRequest
from moonpool.messages.registry import Goodbye, Heartbeat, HelloReply, Registration
from moonpool.messages.status import ConductorStatus, PredictorStatus
from services.conductor import admission
from services.conductor.backlog import Backlogs
from services.conductor.balance import Balancer, Order, Site
from services.conductor.balance_view import fetch_of, holders_of, sites_of
from services.conductor.bandwidth import TransferPredictor
from services.conductor.demand import Demand
from services.conductor.fleet import INSTANCE_ROLES, OWNER_ROLES, Change, Fleet, Member
from services.conductor.holdings import Holdings
from services.conductor.ledger import Entry, Ledger
from services.conductor.lengths import AnswerLengths
from services.conductor.member_status import member_status
from services.conductor.overload import Offer, make_gate
from services.conductor.picks import Pick, Picks
from services.conductor.placement import choose_store
from services.conductor.policies import make_policy
from services.conductor.policy import Policy
from services.conductor.predict import prefill_predictor, step_predictor
from services.conductor.punctual import Punctuality
from services.conductor.reuse import runs_of
from services.conductor.schedule import Choice, Knowledge, Outlook, Scheduler
from services.conductor.senders import Senders
from services.conductor.topology import distance

__all__ = ["ConductorCore", "Policy"]


class ConductorCore:
    """Everything one conductor knows and decides. Times are monotonic seconds, handed in."""

    def __init__(self, policy: Policy, rotation: int = 0) -> None:
        """`rotation` settles ties: conductors that start with different ones do not herd."""
        self.policy = policy
        self.fleet = Fleet(policy.suspect_after_s, policy.dead_after_s)
        self.holdings = Holdings()
        self.prefill = prefill_predictor()
        self.steps = step_predictor()
        self.transfers = TransferPredictor()
        self.picks = Picks()
        self.senders = Senders()
        self.backlogs = Backlogs()
        self.ledger = Ledger()
        self.lengths = AnswerLengths()
        self.punctual = Punctuality()
        self.balancer = Balancer(self.transfers) if policy.balancing else None
        self.sites: Callable[[], list[Site]] = lambda: sites_of(self.fleet)
        self._gate = make_gate(policy.admission, policy.second_look)
        self._knowledge = Knowledge(
            self.fleet,
            self.holdings,
            self.prefill,
            self.steps,
            self.transfers,
            self.picks,
            self.senders,
            self.backlogs,
        )
        chooser = make_policy(policy.scheduling, rotation, policy.balancing_threshold)
        self._scheduler = Scheduler(self._knowledge, chooser)
        self._rotation = rotation
        self.plans = 0
        self.holes_found = 0
        self.refusals: dict[str, int] = {}

    # -- what members say

    def hello(self, registration: Registration, now_s: float) -> HelloReply:
        """Whether a process may join the mesh."""
        return HelloReply(self.fleet.hello(registration, now_s))

    def heartbeat(self, beat: Heartbeat, now_s: float) -> Change | None:
        """A sign of life; what it changed, if anything."""
        return self._note(self.fleet.heartbeat(beat, now_s))

    def goodbye(self, goodbye: Goodbye) -> Change | None:
        """A member leaves on purpose: its blocks are erased now."""
        return self._note(self.fleet.leave(goodbye.id, goodbye.epoch, final=True))

    def proven_dead(self, id: str, epoch: str) -> Change | None:
        """Nobody serves the subject of this life any more: its blocks are erased now."""
        return self._note(self.fleet.leave(id, epoch, final=False))

    def events(self, events: KvEvents) -> bool:
        """Blocks stored and removed. True when the shell must ask for a snapshot of the owner.
        Events of somebody who never sent a heartbeat are ignored; a snapshot will tell."""
        if self.fleet.get(events.owner) is None:
            return False
        return self.holdings.apply(events)

    def load(self, report: LoadReport, now_s: float) -> Change | None:
        """How busy a member is, and samples of what its work really took."""
        member = self.fleet.get(report.id)
        change = self._note(self.fleet.load(report, now_s))
        if member is None or member.load is not report:
            return None
        waiting = frozenset(prompt.tag for prompt in report.prompts)
        self.picks.reported(report.id, now_s, waiting)
        self.ledger.delayed(waiting, now_s)
        self.ledger.joined(self.punctual.reported(report, now_s), now_s)
        for answer in report.answers:
            entry = self.ledger.strike(answer.tag)
            if answer.tokens > 0:
                prompt_tokens = entry.prompt_tokens if entry else 0
                self.lengths.learn(answer.tenant, answer.tokens, prompt_tokens)
        if report.answers and self.lengths.is_stale:
            self.lengths.still_running(self.ledger.ages(now_s, self._token_s))
        kind = member.kind
        for prefill in report.compute:
            self.prefill.learn(
                kind,
                report.id,
                prefill.new_tokens,
                prefill.cached_tokens,
                prefill.seconds,
                now_s,
            )
        for step in report.steps:
            self.steps.learn(
                kind, report.id, step.sequences, step.context_tokens, step.seconds, now_s
            )
        for moved in report.transfers:
            apart = distance(self.fleet.spot(moved.source), self.fleet.spot(moved.target))
            self.transfers.learn(
                moved.source,
                moved.target,
                moved.tier,
                apart,
                moved.size_bytes,
                moved.seconds,
                now_s,
            )
        return change

    def _token_s(self, decode: str) -> float:
        """Seconds per token of its batch as reported; 0: it has not."""
        member = self.fleet.get(decode)
        if member is None or member.load is None:
            return 0.0
        load = member.load
        return self.steps.seconds(member.kind, decode, load.running, load.context_tokens)

    def tick(self, now_s: float) -> list[Change]:
        """Time passed: who fell silent, which picks and sends are void. Call a few times a
        second; returns what changed."""
        changes = self.fleet.tick(now_s)
        for change in changes:
            self._note(change)
        self.picks.expire(now_s)
        self.senders.expire(now_s)
        self.ledger.expire(now_s)
        self.punctual.expire(now_s)
        return changes

    def _note(self, change: Change | None) -> Change | None:
        if change is None or change.member.role not in OWNER_ROLES:
            return change
        owner = OwnerId(change.id)
        if change.kind in ("joined", "restarted"):
            self.holdings.begin_life(owner, change.member.epoch)
            self.picks.forget(change.id)
            self.punctual.forget(change.id)
        elif change.kind in ("suspect", "alive"):
            self.holdings.set_usable(owner, change.kind == "alive")
        elif change.kind == "left":
            final = self.fleet.is_gone(change.id, change.member.epoch)
            self.holdings.end_life(owner, final=final)
            self.picks.forget(change.id)
            self.senders.forget(change.id)
            self.backlogs.forget(change.id)
            self.ledger.forget(change.id)
            self.punctual.forget(change.id)
            self.prefill.forget(change.id.__eq__)
            self.steps.forget(change.id.__eq__)
            self.transfers.forget(change.id)
        return change

    # -- what gateways ask

    def plan(self, request: PlanRequest, now_s: float) -> PlanReply:
        """Where the request shall run, or why it shall not. A plan counts at once against those
        it names. CallerError when `keys` are not whole keys."""
        if len(request.keys) % KEY_BYTES:
            raise CallerError(f"{len(request.keys)} bytes of keys are no whole number of keys")
        reply = self._plan(request, now_s)
        if request.probe:
            return reply
        if reply.refusal:
            code = reply.refusal.code
            self.refusals[code] = self.refusals.get(code, 0) + 1
        else:
            self.plans += 1
        return reply

    def _plan(self, request: PlanRequest, now_s: float) -> PlanReply:
        instances = self.fleet.of_roles(INSTANCE_ROLES)
        members = [m for m in instances if m.model and m.model.fingerprint == request.fingerprint]
        if not members:
            namesakes = [m for m in instances if m.model and m.model.model == request.model]
            return _refused(admission.model_refusal(request.model, namesakes))
        if request.exclude and not request.probe:
            self.picks.withdraw(request.request, request.exclude)
            self.punctual.withdraw(request.request, request.exclude)
            self.ledger.strike(request_tag(request.request))
        serving = [m for m in members if m.can_serve() and m.id not in request.exclude]
        if not serving:
            excluded = len(set(request.exclude))
            return _refused(admission.away_refusal(request.model, members, excluded))
        model = serving[0].model
        assert model is not None, "chosen by its model"
        demand = Demand.of(request, model, self.policy.slo_ttft_s, self.policy.slo_tbt_s)
        self._rotation += 1
        choice = self._choose(request, demand, serving, now_s)
        if isinstance(choice, ErrorInfo):
            return _refused(choice)
        if not request.probe:
            self._settle(request, demand, choice, now_s)
        return PlanReply(self._written(choice))

    def _choose(
        self, request: PlanRequest, demand: Demand, serving: list[Member], now_s: float
    ) -> Choice | ErrorInfo:
        """The best choice. A match found by search is confirmed block by block where the choice
        rests on it; should an eviction have left a hole there, all is looked at and chosen anew."""
        keys = request.keys[: demand.prompt_tokens // demand.block_tokens * KEY_BYTES]
        excluded = [OwnerId(id) for id in request.exclude]
        excluded += [OwnerId(member.id) for member in self.fleet.foreign()]

        def outlook(exact: bool) -> Outlook:
            match = self.holdings.match(keys, excluded, exact)
            return self._scheduler.outlook(demand, match, serving, now_s, self._rotation)

        view = outlook(exact=False)
        if view.choice and not self._holds(keys, view.choice):
            self.holes_found += 1
            view = outlook(exact=True)
        if view.choice is None:
            return admission.outlook_refusal(demand, view)
        offer = Offer(
            demand,
            view.choice,
            view.decodes,
            self._knowledge,
            self.ledger,
            self.lengths,
            self.punctual,
            now_s,
        )
        return self._gate.refuse(offer) or view.choice

    def _holds(self, keys: bytes, choice: Choice) -> bool:
        """Whether every block of the choice's runs, and of the decode's prefix, is there."""
        index, bit = self.holdings.index, self.holdings.bit
        runs = runs_of(choice.prefill.steps, choice.prefill.reuse.blocks)
        have = 0 if choice.colocated else choice.decode.have_blocks
        return all(
            index.confirm(keys, bit(run.owner, run.tier), run.start, run.end) for run in runs
        ) and (
            not have or index.confirm(keys, bit(OwnerId(choice.decode.member.id), "hbm"), 0, have)
        )

    def _settle(self, request: PlanRequest, demand: Demand, choice: Choice, now_s: float) -> None:
        """Counts the choice against those who will do the work."""
        prefill, decode, reuse = choice.prefill.member, choice.decode.member, choice.prefill.reuse
        new_blocks = max(0, demand.blocks - choice.decode.have_blocks)
        due_s = now_s + choice.prefill.patience_s
        placed = Pick(request.request, now_s, 0.0, 0.0, 1, new_blocks, demand.prompt_tokens)
        if choice.colocated:
            placed = replace(placed, work_s=reuse.work_s, due_s=due_s)
        else:
            self.picks.add(prefill.id, Pick(request.request, now_s, reuse.work_s, due_s))
        self.picks.add(decode.id, placed)
        first_s = now_s + choice.ttft_s
        self.punctual.planned(
            request.request,
            prefill.id,
            now_s,
            choice.ttft_s,
            demand.slo_ttft_s,
            is_try=not choice.prefill.trusted,
        )
        self.ledger.add(
            request.request,
            Entry(request.tenant, decode.id, first_s, demand.prompt_tokens, request.max_tokens),
        )
        for step in choice.prefill.steps:
            moved = min(step.end, reuse.blocks) - step.start
            if moved > 0 and step.block_s:
                self.senders.add(step.owner, moved * step.block_s, now_s)
        if self.balancer and reuse.fetched_blocks:
            fetch = fetch_of(request, demand, choice)
            self.balancer.note(fetch, self.sites(), now_s)

    def _written(self, choice: Choice) -> Plan:
        """The choice as a plan."""
        prefill, decode = choice.prefill.member, choice.decode.member
        runs = runs_of(choice.prefill.steps, choice.prefill.reuse.blocks)
        nodes = self.fleet.of_roles(("store",))
        store = choose_store(nodes, (prefill.spot, decode.spot), self._rotation)
        return Plan(
            prefill=InstanceId(prefill.id),
            decode=InstanceId(decode.id),
            runs=runs,
            store=NodeId(store.id) if store else None,
            predicted_ttft_s=choice.ttft_s,
            predicted_tbt_s=choice.decode.tbt_s,
            patience_s=choice.prefill.patience_s,
        )

    def balance(self, now_s: float) -> list[Order]:
        """Copies of hot prefixes to make, and copies too many. Empty unless balancing is on."""
        if self.balancer is None:
            return []
        sites = self.sites()
        holders = holders_of(self.holdings, sites, self.balancer.tier)
        return self.balancer.orders(sites, holders, now_s)

    # -- looking in

    def predictors(self) -> list[PredictorStatus]:
        """How far each predictor was off lately."""
        tracks = (
            (self.prefill.name, self.prefill.errors),
            (self.steps.name, self.steps.errors),
            ("transfer", self.transfers.errors),
            ("ttft", self.punctual.errors),
        )
        return [
            PredictorStatus(name, track.samples, track.quantile(0.5), track.quantile(0.9))
            for name, track in tracks
        ]

    def status(self, id: str, uptime_s: float, now_s: float) -> ConductorStatus:
        """The mesh as this conductor sees it."""
        return ConductorStatus(
            id=id,
            uptime_s=uptime_s,
            members=[
                member_status(member, self.holdings, now_s)
                for member in sorted(self.fleet, key=lambda m: (m.role, m.id))
            ],
            predictors=self.predictors(),
            keys=len(self.holdings.index),
            blocks=self.holdings.index.blocks_by_tier(),
            counters=self.stats(),
        )

    def stats(self) -> dict[str, int]:
        return {
            **self.fleet.stats(),
            **self.holdings.stats(),
            **self.picks.stats(),
            **self.senders.stats(),
            **self.ledger.stats(),
            **self.lengths.stats(),
            **self.punctual.stats(),
            **(self.balancer.stats() if self.balancer else {}),
            "plans": self.plans,
            "holes_found": self.holes_found,
            **{f"refused_{code}": count for code, count in sorted(self.refusals.items())},
        }

    def check(self) -> None:
        """All invariants of all parts, and those between them."""
        self.fleet.check()
        self.holdings.check()
        for part in (self.prefill, self.steps, self.transfers, self.picks, self.ledger):
            part.check()
        self.punctual.check()
        if self.balancer:
            self.balancer.check()
        for member in self.fleet:
            if member.role in OWNER_ROLES:
                assert self.holdings.state(OwnerId(member.id)), f"{member.id} has a stream"
        for owner in self.holdings.owners():
            assert self.fleet.get(owner), f"{owner} is a member"


def _refused(refusal: ErrorInfo) -> PlanReply:
    return PlanReply(refusal=refusal)
