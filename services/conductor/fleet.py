"""The fleet: who is on the mesh, which life of each it is, how well, and how busy.

Liveness is suspect before dead: a silent member is first not chosen, and only a long silence or a
proof (a goodbye, a new life, a subject that nobody serves) ends it. An id belongs to one life at a
time. The later start wins, so that every conductor decides alike without talking to the others.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from moonpool.kv import BlockLayout, ModelIdentity
from moonpool.messages.errors import Blame, ErrorInfo
from moonpool.messages.load import LoadReport
from moonpool.messages.registry import Heartbeat, ModelRecord, Registration
from services.conductor.topology import NOWHERE, Spot

INSTANCE_ROLES = frozenset({"prefill", "decode", "colocated"})
FOREIGN = "foreign"  # an engine that is not ours: known, found by others, never planned on
OWNER_ROLES = INSTANCE_ROLES | {"store", FOREIGN}
_MEMBERS_MAX = 65536  # a mesh is smaller; a flood of made-up ids is not let in
_GREETED_MAX = 4096
_GREETED_S = 10.0  # whoever was let in and sends no heartbeat for so long did not come
_GONE_MAX = 4096  # ended lives remembered, so that their late messages revive nobody


class Health(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"  # silent for a while: not chosen, not erased


@dataclass(slots=True)
class Member:
    """One life of one process."""

    registration: Registration
    state: str  # "starting", "ready", "draining": its own word
    heard_s: float
    health: Health = Health.ALIVE
    load: LoadReport | None = None
    load_at_s: float = 0.0
    mismatch: str = ""  # why it may not serve its model, when it may not
    # Of one life, and asked for hundreds of times in a plan.
    id: str = field(init=False)
    role: str = field(init=False)
    spot: Spot = field(init=False)
    kind: str = field(init=False)  # machines of one kind share predictions: same model and role

    def __post_init__(self) -> None:
        own = self.registration
        self.id, self.role = own.id, own.role
        self.spot = Spot(own.host_id, own.rack, own.zone)
        self.kind = f"{self.role}:{own.model.fingerprint.hex()[:16]}" if own.model else self.role

    @property
    def duty(self) -> str:
        """What new work it takes: "prefill", "decode" or "both"; its role, when it is none of
        these."""
        if self.role != "colocated":
            return self.role
        told = self.load.duty if self.load else ""
        return told if told in ("prefill", "decode") else "both"

    @property
    def epoch(self) -> str:
        return self.registration.epoch

    @property
    def host(self) -> str:
        return self.registration.host_id

    @property
    def model(self) -> ModelRecord | None:
        return self.registration.model

    @property
    def shown_state(self) -> str:
        """One word for people: its own state, unless we doubt it."""
        if self.health is Health.SUSPECT:
            return "suspect"
        return "mismatched" if self.mismatch else self.state

    def can_serve(self) -> bool:
        """Ready, heard of lately, and of one kind with its peers."""
        return self.health is Health.ALIVE and self.state == "ready" and not self.mismatch


@dataclass(frozen=True, slots=True)
class Change:
    """What a message or a tick changed for one member."""

    id: str
    kind: str  # "joined", "restarted", "suspect", "alive", "left"
    member: Member


class Fleet:
    """All members by id. Time is handed in, monotonic, in seconds."""

    def __init__(self, suspect_after_s: float, dead_after_s: float) -> None:
        self.suspect_after_s = suspect_after_s
        self.dead_after_s = max(dead_after_s, suspect_after_s)
        self._members: dict[str, Member] = {}
        self._gone: dict[tuple[str, str], None] = {}  # (id, epoch) of ended lives, oldest first
        self._greeted: dict[str, tuple[Registration, float]] = {}  # let in, not heard of yet
        self.stale_messages = 0

    # -- what members say

    def hello(self, registration: Registration, now_s: float) -> ErrorInfo | None:
        """Whether this process may join: None, or why not."""
        held = self._members.get(registration.id)
        if held and held.epoch != registration.epoch:
            silent_s = now_s - held.heard_s
            if silent_s < self.suspect_after_s:
                return self._duplicate(held, registration, self.suspect_after_s - silent_s)
        reason = self._mismatch(registration)
        if reason:
            return ErrorInfo("fingerprint_mismatch", Blame.CALLER, reason)
        if len(self._greeted) < _GREETED_MAX:
            self._greeted[registration.id] = (registration, now_s)
        return None

    def heartbeat(self, beat: Heartbeat, now_s: float) -> Change | None:
        """Notes a member's sign of life. A later start under the same id ends the earlier life;
        an earlier one, or one that ended, is ignored."""
        registration = beat.registration
        held = self._members.get(registration.id)
        if (registration.id, registration.epoch) in self._gone:
            self.stale_messages += 1
            return None
        if held and held.epoch == registration.epoch:
            return self._beat_again(held, beat, now_s)
        if held and not _later(registration, held.registration):
            self.stale_messages += 1
            return None
        if not held and len(self._members) >= _MEMBERS_MAX:
            self.stale_messages += 1
            return None
        if held:
            self._end(held, final=True)
        member = Member(registration, beat.state, now_s)
        member.mismatch = self._mismatch(registration)
        self._members[registration.id] = member
        return Change(member.id, "restarted" if held else "joined", member)

    def _beat_again(self, member: Member, beat: Heartbeat, now_s: float) -> Change | None:
        member.registration = beat.registration
        member.state = beat.state
        member.heard_s = now_s
        if member.mismatch:  # whom it differs from may have left
            member.mismatch = self._mismatch(beat.registration)
        return self._revive(member)

    def load(self, report: LoadReport, now_s: float) -> Change | None:
        """Notes how busy a known member is; also a sign of life. Old reports are ignored."""
        member = self._members.get(report.id)
        if member is None or member.epoch != report.epoch:
            self.stale_messages += 1
            return None
        if member.load and report.seq <= member.load.seq:
            self.stale_messages += 1
            return None
        member.load = report
        member.load_at_s = now_s
        member.heard_s = now_s
        member.state = report.state
        return self._revive(member)

    def leave(self, id: str, epoch: str, *, final: bool) -> Change | None:
        """Ends a life now. A goodbye is `final`: its late messages revive nobody. What only looks
        dead (nobody serves its subject) may come back as it was. Another epoch's end is ignored."""
        member = self._members.get(id)
        if member is None or member.epoch != epoch:
            return None
        self._end(member, final=final)
        return Change(id, "left", member)

    def tick(self, now_s: float) -> list[Change]:
        """Who fell silent: first suspect, much later left."""
        changes: list[Change] = []
        self._greeted = {
            id: (registration, at_s)
            for id, (registration, at_s) in self._greeted.items()
            if now_s - at_s < _GREETED_S and id not in self._members
        }
        for member in list(self._members.values()):
            silent_s = now_s - member.heard_s
            if silent_s >= self.dead_after_s:
                self._end(member, final=False)
                changes.append(Change(member.id, "left", member))
            elif silent_s >= self.suspect_after_s and member.health is Health.ALIVE:
                member.health = Health.SUSPECT
                changes.append(Change(member.id, "suspect", member))
        return changes

    def _revive(self, member: Member) -> Change | None:
        if member.health is Health.ALIVE:
            return None
        member.health = Health.ALIVE
        return Change(member.id, "alive", member)

    def _end(self, member: Member, *, final: bool) -> None:
        del self._members[member.id]
        if not final:
            return
        self._gone[(member.id, member.epoch)] = None
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]

    # -- one kind of model per name

    def reference(self, model: str, besides: str = "") -> Registration | None:
        """The instance that others of this model are held against: of those that live, or were
        just let in, the one started first."""
        peers = [m.registration for m in self._members.values() if not m.mismatch]
        peers += [registration for registration, _ in self._greeted.values()]
        peers = [p for p in peers if p.model and p.model.model == model and p.id != besides]
        return min(peers, key=lambda p: (p.started_unix_s, p.id), default=None)

    def _mismatch(self, registration: Registration) -> str:
        record = registration.model
        reference = self.reference(record.model, registration.id) if record else None
        if record is None or reference is None or reference.model is None:
            return ""
        theirs = reference.model
        if record.fingerprint == theirs.fingerprint and record.block_tokens == theirs.block_tokens:
            return ""
        fields = "; ".join(differences(record, theirs)) or "fingerprints differ"
        return (
            f"{registration.id} and {reference.id} both call their model {record.model!r} but "
            f"differ ({registration.id} != {reference.id}): {fields}"
        )

    def _duplicate(self, held: Member, other: Registration, wait_s: float) -> ErrorInfo:
        return ErrorInfo(
            "duplicate_id",
            Blame.PEER,  # it may be our own last life, whose end nobody has noticed yet
            f"{other.id} is taken by a live {held.role} on host {held.host} (epoch {held.epoch}); "
            f"the {other.role} on host {other.host_id} (epoch {other.epoch}) needs another id, or "
            "the other's end",
            retry_after_s=wait_s,
        )

    # -- questions

    def get(self, id: str) -> Member | None:
        return self._members.get(id)

    def spot(self, id: str) -> Spot:
        """Where a member is; nowhere when it is unknown."""
        member = self._members.get(id)
        return member.spot if member else NOWHERE

    def is_gone(self, id: str, epoch: str) -> bool:
        """Whether this life ended for good."""
        return (id, epoch) in self._gone

    def of_roles(self, roles: Iterable[str]) -> list[Member]:
        """Members of these roles, in order of id, so that choices are reproducible."""
        wanted = frozenset(roles)
        return sorted((m for m in self if m.role in wanted), key=lambda m: m.id)

    def foreign(self) -> list[Member]:
        """Engines that are not ours: nobody here can read their blocks."""
        return [member for member in self if member.role == FOREIGN]

    def silent(self, now_s: float, after_s: float) -> list[Member]:
        """Members not heard of for `after_s`: worth a probe."""
        return [m for m in self if now_s - m.heard_s >= after_s]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def stats(self) -> dict[str, int]:
        suspect = sum(m.health is Health.SUSPECT for m in self)
        return {
            "members": len(self),
            "suspect": suspect,
            "mismatched": sum(bool(m.mismatch) for m in self),
            "stale_messages": self.stale_messages,
        }

    def check(self) -> None:
        """Filed under their ids, loads belong to the noted life, and nobody lives twice."""
        for id, member in self._members.items():
            assert member.id == id, "filed under its id"
            assert (id, member.epoch) not in self._gone, "who ended does not live"
            assert member.load is None or member.load.epoch == member.epoch, "a load of its life"
        assert len(self._members) <= _MEMBERS_MAX
        assert len(self._gone) <= _GONE_MAX


def differences(ours: ModelRecord, theirs: ModelRecord) -> list[str]:
    """Fields in which two records differ, as `name: ours != theirs`, identity first."""
    found: list[str] = []
    mine, other = _identity(ours.identity), _identity(theirs.identity)
    if mine and other:
        found += mine.differences(other)
    elif ours.identity != theirs.identity:
        found.append(f"identity: {ours.identity} != {theirs.identity}")
    for name in ("block_tokens", "block_bytes", "layers", "context_tokens", "dtype"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            found.append(f"{name}: {a} != {b}")
    return found


def _identity(text: str) -> ModelIdentity | None:
    """The identity that an instance sent as JSON, or None when it is of another version."""
    try:
        fields: dict[str, Any] = json.loads(text)
        return ModelIdentity(**{**fields, "layout": BlockLayout(**fields["layout"])})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _later(ours: Registration, theirs: Registration) -> bool:
    return (ours.started_unix_s, ours.epoch) > (theirs.started_unix_s, theirs.epoch)
