"""Plays scenario files on a conductor's core: `$ command` lines, each followed by what it prints.

prefill|decode|colocated ID [host=H] [rack=R] [zone=Z] [pool=BLOCKS] [slots=N]
                                                                 a member joins, ready, idle
node ID [host=H] [rack=R] [zone=Z] [used=SHARE]                  a store node joins
load ID [queue=PROMPTSxTOKENS] [running=N] [context=T] [free=BLOCKS] [used=SHARE] [state=S]
        [duty=both|prefill|decode]
learn prefill|step|link ...                                      samples, as load reports bring
holds|loses ID TIER CHAIN START..END                             a block event
lost ID TIER CHAIN START..END                                    a block event that never came
snapshot ID CHAIN START..END [TIER]                              the snapshot an owner answers
silence|speaks|dies|leaves|restarts ID                           what becomes of members
wait SECONDS                                                     others go on with heartbeats
punctual ID COUNT ratio=R              first tokens that came after R times what was predicted
plan REQUEST CHAIN TOKENS [exclude=ID,..] [ttft=S] [tbt=S] [model=NAME]
                                  [priority=high|normal|low]
wanting / members
conductor [scheduling=NAME] [admission=NAME] [balancing=on]       begins anew with other policies
asked SECONDS PER_S CHAIN TOKENS                                 plans of that, and what is balanced
"""

import random
import shlex
from dataclasses import replace
from pathlib import Path

from moonpool.messages.events import KvEvents, SnapshotPage
from moonpool.messages.ids import InstanceId, OwnerId, RequestId, TenantId
from moonpool.messages.load import ComputeSample, LoadReport, StepSample, TransferSample
from moonpool.messages.plan import PlanReply, PlanRequest
from moonpool.messages.prefill import LEVELS
from moonpool.messages.registry import Goodbye, Heartbeat, ModelRecord, Registration
from services.conductor.core import ConductorCore, Policy

BLOCK_TOKENS = 64
BLOCK_BYTES = 1 << 20
MODEL = ModelRecord("m", b"f" * 32, "{}", BLOCK_TOKENS, BLOCK_BYTES, 30, 32768, "bfloat16")
POLICY = Policy(slo_ttft_s=10.0, slo_tbt_s=0.2, suspect_after_s=3.0, dead_after_s=30.0)
TICK_S = 0.25


def chain_keys(name: str, start: int, end: int) -> bytes:
    """Packed keys of blocks `[start, end)` of a chain that is the same in every run."""
    return b"".join(random.Random(f"{name}:{i}").randbytes(16) for i in range(start, end))


class Mesh:
    """Members as they would talk, around one core."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.core = ConductorCore(policy)
        self.now_s = 100.0
        self.lives: dict[str, int] = {}
        self.registrations: dict[str, Registration] = {}
        self.loads: dict[str, LoadReport] = {}
        self.seqs: dict[str, int] = {}
        self.silent: set[str] = set()

    # -- members

    def join(
        self,
        role: str,
        id: str,
        host: str = "h1",
        pool: int = 1000,
        slots: int = 8,
        rack: str = "",
        zone: str = "",
    ) -> None:
        life = self.lives[id] = self.lives.get(id, 0) + 1
        model = None if role == "store" else MODEL
        self.registrations[id] = Registration(
            id, role, f"{id}.{life}", 1000.0 + life, host, "1", model=model, rack=rack, zone=zone
        )
        self.seqs[id] = 0
        self.silent.discard(id)
        if role == "store":
            load = LoadReport(id, f"{id}.{life}", 0, tiers={"dram": (0, 100)})
        else:
            load = LoadReport(
                id, f"{id}.{life}", 0, slots_total=slots, blocks_free=pool, blocks_total=pool
            )
        self.loads[id] = load
        self.beat(id)
        self.answer_snapshot(id, {})

    def beat(self, id: str) -> None:
        self.core.heartbeat(Heartbeat(self.registrations[id], self.loads[id].state), self.now_s)
        self.report(id)

    def report(self, id: str, **changes: object) -> None:
        """A load report, with what stays true unless changed."""
        fields = {name: getattr(self.loads[id], name) for name in LoadReport.__struct_fields__}
        fields |= {"compute": [], "steps": [], "transfers": []} | changes
        fields["seq"] = fields["seq"] + 1
        self.loads[id] = LoadReport(**fields)
        self.core.load(self.loads[id], self.now_s)

    def tell(self, id: str, tier: str, stored: bytes = b"", removed: bytes = b"") -> None:
        self.seqs[id] += 1
        epoch = self.registrations[id].epoch
        self.core.events(KvEvents(OwnerId(id), epoch, self.seqs[id], tier, stored, removed))

    def answer_snapshot(self, id: str, tiers: dict[str, bytes]) -> None:
        """The whole snapshot in one page, when the core wants one."""
        if OwnerId(id) in self.core.holdings.wanting():
            epoch = self.core.holdings.begin_snapshot(OwnerId(id))
            assert epoch is not None
            page = SnapshotPage(OwnerId(id), epoch, self.seqs[id], tiers)
            self.core.holdings.apply_page(page, epoch)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            for id in self.registrations:
                if id not in self.silent and self.now_s % 1.0 == 0.0:
                    self.beat(id)
            self.core.tick(self.now_s)

    def plan(
        self,
        request: str,
        chain: str,
        tokens: int,
        exclude: tuple[str, ...] = (),
        ttft: float = 0.0,
        tbt: float = 0.0,
        model: str = "m",
        fingerprint: bytes = MODEL.fingerprint,
        level: int = 1,
    ) -> PlanReply:
        return self.core.plan(
            PlanRequest(
                RequestId(request),
                TenantId("t"),
                model,
                fingerprint,
                chain_keys(chain, 0, tokens // BLOCK_TOKENS),
                tokens,
                256,
                exclude=tuple(InstanceId(id) for id in exclude),
                slo_ttft_s=ttft,
                slo_tbt_s=tbt,
                level=level,
            ),
            self.now_s,
        )

    # -- samples

    def learn_prefill(self, id: str, per_token_s: float, per_pair_s: float = 1e-9) -> None:
        samples = []
        for new in (64, 256, 1024, 4096, 16384):
            for cached in (0, 1024, 8192):
                seconds = 0.005 + per_token_s * new + per_pair_s * new * (new + 2 * cached)
                samples.append(ComputeSample(new, cached, seconds))
        self.report(id, compute=samples * 3)

    def learn_step(self, id: str, base_s: float) -> None:
        samples = [
            StepSample(n, n * 2000, base_s + 0.001 * n + 1e-7 * n * 2000) for n in range(1, 17)
        ]
        self.report(id, steps=samples * 3)

    def learn_link(self, source: str, target: str, tier: str, bytes_per_s: float) -> None:
        sample = TransferSample(source, target, tier, 64 << 20, (64 << 20) / bytes_per_s)
        self.report(target, transfers=[sample] * 10)


class Scenario:
    """Runs the lines of one file."""

    def __init__(self) -> None:
        self.mesh = Mesh()

    def run(self, text: str) -> str:
        """The file as it should be: comments and commands kept, outputs made anew."""
        lines = []
        for line in text.splitlines():
            if line.startswith("$ "):
                lines.append(line)
                out = self.do(line[2:])
                self.mesh.core.check()
                lines += [f"  {each}" for each in out]
            elif not line or line.startswith("#"):
                lines.append(line)
        return "\n".join(lines).rstrip("\n") + "\n"

    def do(self, command: str) -> list[str]:
        verb, *rest = shlex.split(command)
        words = [word for word in rest if "=" not in word]
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        return getattr(self, f"do_{verb}")(*words, **options) or []

    def _join(self, role: str, id: str, pool: str = "1000", slots: str = "8", **spot: str) -> None:
        self.mesh.join(role, id, pool=int(pool), slots=int(slots), **spot)

    def do_conductor(
        self, scheduling: str = "ours", admission: str = "ours", balancing: str = ""
    ) -> None:
        """Everything anew, under other policies."""
        policy = replace(POLICY, scheduling=scheduling, admission=admission)
        self.mesh = Mesh(replace(policy, balancing=balancing == "on"))

    def do_asked(self, seconds: str, per_s: str, chain: str, tokens: str) -> list[str]:
        """Orders of the balancer are carried out at once."""
        out = []
        for second in range(1, int(seconds) + 1):
            for number in range(int(per_s)):
                self.mesh.plan(f"{chain}{self.mesh.now_s}.{number}", chain, int(tokens))
            self.mesh.wait(1.0)
            moved: dict[str, int] = {}
            for order in self.mesh.core.balance(self.mesh.now_s):
                what = (
                    f"{order.source} > {order.target}" if order.target else f"less {order.source}"
                )
                moved[what] = moved.get(what, 0) + len(order.keys) // 16
                if order.target:
                    self.mesh.tell(order.target, "dram", stored=order.keys)
                else:
                    self.mesh.tell(order.source, "dram", removed=order.keys)
            out += [f"{second} s: {what}, {blocks} blocks" for what, blocks in moved.items()]
        return out or ["nothing"]

    def do_prefill(self, id: str, **options: str) -> None:
        self._join("prefill", id, **options)

    def do_decode(self, id: str, **options: str) -> None:
        self._join("decode", id, **options)

    def do_colocated(self, id: str, **options: str) -> None:
        self._join("colocated", id, **options)

    def do_node(self, id: str, used: str = "0", **spot: str) -> None:
        self._join("store", id, **spot)
        self.do_load(id, used=used)

    def do_load(self, id: str, **options: str) -> None:
        changes: dict[str, object] = {}
        if "queue" in options:
            prompts, tokens = map(int, options["queue"].split("x"))
            changes |= {"queued_requests": prompts, "queued_tokens": prompts * tokens}
        for option, name in (
            ("running", "running"),
            ("context", "context_tokens"),
            ("free", "blocks_free"),
        ):
            if option in options:
                changes[name] = int(options[option])
        if "used" in options:
            changes["tiers"] = {"dram": (int(100 * float(options["used"])), 100)}
        if "duty" in options:
            changes["duty"] = options["duty"]
        if "state" in options:
            changes["state"] = options["state"]
        self.mesh.report(id, **changes)

    def do_learn(self, what: str, *words: str, **options: str) -> None:
        if what == "prefill":
            self.mesh.learn_prefill(words[0], float(options["token"]))
        elif what == "step":
            self.mesh.learn_step(words[0], float(options["base"]))
        else:
            self.mesh.learn_link(words[0], words[1], words[2], float(options["rate"]))

    def do_punctual(self, id: str, count: str, ratio: str = "1") -> None:
        """Plans of a second each, one by one, and a report after `ratio` seconds."""
        punctual = self.mesh.core.punctual
        for number in range(int(count)):
            at_s = self.mesh.now_s - float(ratio)
            punctual.planned(RequestId(f"{id}{number}"), id, at_s, 1.0, 1.0, is_try=False)
            self.mesh.report(id, queued_requests=0, queued_tokens=0)

    def do_holds(self, id: str, tier: str, chain: str, blocks: str) -> None:
        self.mesh.tell(id, tier, stored=chain_keys(chain, *_range(blocks)))

    def do_loses(self, id: str, tier: str, chain: str, blocks: str) -> None:
        self.mesh.tell(id, tier, removed=chain_keys(chain, *_range(blocks)))

    def do_lost(self, id: str, tier: str, chain: str, blocks: str) -> None:
        self.mesh.seqs[id] += 1

    def do_snapshot(self, id: str, chain: str, blocks: str, tier: str = "hbm") -> None:
        self.mesh.answer_snapshot(id, {tier: chain_keys(chain, *_range(blocks))})

    def do_silence(self, id: str) -> None:
        self.mesh.silent.add(id)

    def do_speaks(self, id: str) -> None:
        self.mesh.silent.discard(id)
        self.mesh.beat(id)

    def do_dies(self, id: str) -> None:
        self.mesh.silent.add(id)
        self.mesh.core.proven_dead(id, self.mesh.registrations[id].epoch)

    def do_leaves(self, id: str) -> None:
        self.mesh.core.goodbye(Goodbye(id, self.mesh.registrations.pop(id).epoch))

    def do_restarts(self, id: str) -> None:
        old = self.mesh.registrations[id]
        self.mesh.join(old.role, id, old.host_id)

    def do_wait(self, seconds: str) -> None:
        self.mesh.wait(float(seconds))

    def do_wanting(self) -> list[str]:
        return [" ".join(sorted(self.mesh.core.holdings.wanting())) or "nobody"]

    def do_members(self) -> list[str]:
        members = sorted(self.mesh.core.fleet, key=lambda member: member.id)
        return [
            f"{member.id}: {member.shown_state}, "
            f"{sum(self.mesh.core.holdings.blocks(OwnerId(member.id)).values())} blocks"
            for member in members
        ]

    def do_plan(self, request: str, chain: str, tokens: str, **options: str) -> list[str]:
        reply = self.mesh.plan(
            request,
            chain,
            int(tokens),
            exclude=tuple(filter(None, options.get("exclude", "").split(","))),
            ttft=float(options.get("ttft", 0)),
            tbt=float(options.get("tbt", 0)),
            model=options.get("model", "m"),
            level=LEVELS.index(options.get("priority", "normal")),
            fingerprint=MODEL.fingerprint if options.get("model", "m") == "m" else b"g" * 32,
        )
        return _lines(reply, int(tokens))


def _lines(reply: PlanReply, tokens: int) -> list[str]:
    if reply.refusal:
        again = reply.refusal.retry_after_s
        when = f", again in {again:.2f} s" if again else ""
        return [f"refused: {reply.refusal.code}{when}", f"  {reply.refusal.message}"]
    plan = reply.plan
    assert plan is not None
    where = (
        f"at {plan.prefill}" if plan.prefill == plan.decode else f"{plan.prefill} > {plan.decode}"
    )
    runs = " ".join(f"{run.owner}.{run.tier}[{run.start},{run.end})" for run in plan.runs)
    reused = plan.runs[-1].end if plan.runs else 0
    left = tokens - min(reused * BLOCK_TOKENS, tokens - 1)
    return [
        f"{where}, ttft {plan.predicted_ttft_s:.3f} s, tbt {plan.predicted_tbt_s:.3f} s, "
        f"store {plan.store or '-'}",
        f"  reuse {runs or 'nothing'}, compute {left} tokens",
    ]


def _range(text: str) -> tuple[int, int]:
    start, end = text.split("..")
    return int(start), int(end)


def run_file(path: Path) -> tuple[str, str]:
    """(the file as it is, the file as it should be)"""
    text = path.read_text()
    return text, Scenario().run(text)
