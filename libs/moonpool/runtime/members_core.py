"""Who is on the mesh, from heartbeats: suspect before dead. Pure; time is handed in.

A silent member is first suspect (send nobody there, erase nothing) and forgotten only after long.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from moonpool.messages.registry import Goodbye, Heartbeat, Registration


class ChangeKind(StrEnum):
    JOINED = "joined"  # new id, or a new epoch of a known one (which LEFT first)
    STATE = "state"  # starting, ready, draining
    SUSPECT = "suspect"  # silent, or doubted
    BACK = "back"  # was suspect, is heard again
    LEFT = "left"  # said goodbye, or was replaced by a new epoch
    FORGOTTEN = "forgotten"  # silent for so long that it counts as dead


@dataclass(frozen=True, slots=True)
class Member:
    registration: Registration
    state: str
    last_seen_s: float
    is_suspect: bool = False

    @property
    def id(self) -> str:
        return self.registration.id

    @property
    def role(self) -> str:
        return self.registration.role

    @property
    def is_usable(self) -> bool:
        """Whether new work may go there."""
        return self.state == "ready" and not self.is_suspect


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    member: Member


class MembersCore:
    """All members heard of."""

    def __init__(self, suspect_after_s: float, forget_after_s: float) -> None:
        if not 0 < suspect_after_s < forget_after_s:
            raise ValueError(f"0 < {suspect_after_s=} < {forget_after_s=} must hold")
        self._suspect_after_s = suspect_after_s
        self._forget_after_s = forget_after_s
        self._members: dict[str, Member] = {}
        self._told: set[str] = set()  # roles of which somebody named its company
        self._unheard: dict[str, tuple[str, float]] = {}  # named so: id -> (role, when)

    def heartbeat(self, beat: Heartbeat, now_s: float) -> list[Change]:
        """Beats of an epoch older than the one known are ignored while that one lives."""
        given = beat.registration
        self._note_company(given.role, beat.company, now_s)
        known = self._members.get(given.id)
        if known is None:
            return [self._join(beat, now_s)]
        ours = known.registration
        if ours.epoch != given.epoch:
            if given.started_unix_s < ours.started_unix_s and not known.is_suspect:
                return []
            return [Change(ChangeKind.LEFT, known), self._join(beat, now_s)]
        member = replace(
            known,
            registration=given,
            state=beat.state,
            last_seen_s=now_s,
            is_suspect=False,
        )
        self._members[given.id] = member
        changes = []
        if known.is_suspect:
            changes.append(Change(ChangeKind.BACK, member))
        if known.state != member.state or ours != given:
            changes.append(Change(ChangeKind.STATE, member))
        return changes

    def goodbye(self, message: Goodbye) -> list[Change]:
        """Of an epoch that is not the one known: ignored."""
        self._unheard.pop(message.id, None)
        known = self._members.get(message.id)
        if known is None or known.registration.epoch != message.epoch:
            return []
        del self._members[message.id]
        return [Change(ChangeKind.LEFT, known)]

    def doubt(self, id: str) -> list[Change]:
        """A request to it found nobody: suspect at once, until it is heard again."""
        known = self._members.get(id)
        if known is None or known.is_suspect:
            return []
        return [self._suspect(known)]

    def tick(self, now_s: float) -> list[Change]:
        """What silence has done since; call it a few times per `suspect_after_s`."""
        changes = []
        for member in list(self._members.values()):
            silence_s = now_s - member.last_seen_s
            if silence_s >= self._forget_after_s:
                del self._members[member.id]
                changes.append(Change(ChangeKind.FORGOTTEN, member))
            elif silence_s >= self._suspect_after_s and not member.is_suspect:
                changes.append(self._suspect(member))
        for id, (_, named_s) in list(self._unheard.items()):
            if now_s - named_s >= self._suspect_after_s:
                del self._unheard[id]
        return changes

    def is_told(self, role: str) -> bool:
        """Whether one of that role named its company, and all who were named were heard."""
        unheard = any(role == whose for whose, _ in self._unheard.values())
        return role in self._told and not unheard

    def get(self, id: str) -> Member | None:
        return self._members.get(id)

    def of(self, roles: Iterable[str]) -> list[Member]:
        """Members with one of `roles`, suspect ones included, by id."""
        wanted = set(roles)
        found = [member for member in self._members.values() if member.role in wanted]
        return sorted(found, key=lambda member: member.id)

    def absent(self, role: str) -> list[str]:
        """Suspect, or named by others as their company and not heard yet."""
        out = [m.id for m in self._members.values() if m.is_suspect and m.role == role]
        if self._unheard:
            out += [id for id, (whose, _) in self._unheard.items() if whose == role]
        return out

    def all(self) -> list[Member]:
        return sorted(self._members.values(), key=lambda member: member.id)

    def __len__(self) -> int:
        return len(self._members)

    def check(self) -> None:
        """Asserts what must hold."""
        for id, member in self._members.items():
            assert id == member.registration.id, (id, member)
        assert not self._unheard.keys() & self._members.keys()

    def _join(self, beat: Heartbeat, now_s: float) -> Change:
        member = Member(beat.registration, beat.state, now_s)
        self._members[member.id] = member
        self._unheard.pop(member.id, None)
        return Change(ChangeKind.JOINED, member)

    def _note_company(self, role: str, company: Iterable[str], now_s: float) -> None:
        for id in company:
            self._told.add(role)
            if id not in self._members:
                self._unheard.setdefault(id, (role, now_s))

    def _suspect(self, member: Member) -> Change:
        suspected = replace(member, is_suspect=True)
        self._members[member.id] = suspected
        return Change(ChangeKind.SUSPECT, suspected)
