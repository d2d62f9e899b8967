"""Follows the registry on the bus and keeps the members that live."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from moonpool.bus import Bus, BusUnavailable, Subscription
from moonpool.clock import Clock
from moonpool.messages.codec import MalformedMessage, decode, encode
from moonpool.messages.registry import Goodbye, Heartbeat, RollCall
from moonpool.messages.subjects import Subjects
from moonpool.runtime.background import background, end
from moonpool.runtime.members_core import Change, ChangeKind, Member, MembersCore

log = logging.getLogger(__name__)

OnChange = Callable[[Change], None]

TICK_S = 0.5
SUSPECT_AFTER_S = 3.0
FORGET_AFTER_S = 30.0
ROUND_S = 1.25  # in which everybody who is there beats by itself
LOOK_S = 0.005


class Members:
    """`async with Members(..) as members:` follows inside. It calls the roll at its start: who is
    there shows up at once, and `gather` says when that is all. `on_change` is called on the event
    loop and must not block."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        clock: Clock,
        *,
        suspect_after_s: float = SUSPECT_AFTER_S,
        forget_after_s: float = FORGET_AFTER_S,
        on_change: OnChange | None = None,
        calls: Sequence[str] = (),
    ) -> None:
        """`calls`: roles that are to answer at the start; none: all."""
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._core = MembersCore(suspect_after_s, forget_after_s)
        self._on_change = on_change
        self._calls = list(calls)
        self._started_s = clock.now()
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._malformed = 0

    def of(self, *roles: str) -> list[Member]:
        """By id, suspect ones included: ask `is_usable` before sending work."""
        return self._core.of(roles)

    def usable(self, *roles: str) -> list[Member]:
        """Those that new work may go to."""
        return [member for member in self._core.of(roles) if member.is_usable]

    def get(self, id: str) -> Member | None:
        return self._core.get(id)

    def absent(self, role: str) -> list[str]:
        """Ids of that role that are suspect, or that others hear, or did until now, and we do
        not."""
        return self._core.absent(role)

    def all(self) -> list[Member]:
        return self._core.all()

    def doubt(self, id: str) -> None:
        """A request to it found nobody: suspect at once, until it is heard again."""
        self._tell(self._core.doubt(id))

    def is_gathered(self, role: str) -> bool:
        """Whether all of that role who are there should be known: one of them told its company,
        and all of that was heard; or everybody had the time to beat."""
        return self._core.is_told(role) or self._clock.now() >= self._started_s + ROUND_S

    async def gather(self, role: str, within_s: float) -> bool:
        """Returns once `is_gathered`, after some milliseconds mostly, or False when time is over.
        Cancellable."""
        ends_s = self._clock.now() + within_s
        while not self.is_gathered(role):
            if self._clock.now() >= ends_s:
                return False
            await self._clock.sleep(LOOK_S)
        return True

    def company(self, role: str) -> list[str]:
        """Ids of that role that are heard; none before `is_gathered`, so that whoever asks is not
        told a part of them for all."""
        if not self.is_gathered(role):
            return []
        return [member.id for member in self._core.of([role]) if not member.is_suspect]

    async def start(self) -> None:
        self._started_s = self._clock.now()
        self._subscriptions = [
            await self._bus.subscribe(self._subjects.heartbeat, self._on_heartbeat),
            await self._bus.subscribe(self._subjects.goodbye, self._on_goodbye),
        ]
        self._tasks = [background(self._tick(), "members")]
        try:
            await self._bus.publish(self._subjects.roll, encode(RollCall(self._calls)))
        except BusUnavailable as error:
            log.info("the roll was not called", extra={"error": str(error)})

    async def close(self) -> None:
        """Idempotent. Members known stay as they were."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.close()
        await end(self._tasks)

    def stats(self) -> dict[str, int]:
        suspect = sum(member.is_suspect for member in self._core.all())
        return {"members": len(self._core), "suspect": suspect, "malformed": self._malformed}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _on_heartbeat(self, subject: str, payload: bytes) -> None:
        try:
            beat = decode(payload, Heartbeat)
        except MalformedMessage:
            self._malformed += 1
            return
        self._tell(self._core.heartbeat(beat, self._clock.now()))

    async def _on_goodbye(self, subject: str, payload: bytes) -> None:
        try:
            message = decode(payload, Goodbye)
        except MalformedMessage:
            self._malformed += 1
            return
        self._tell(self._core.goodbye(message))

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            self._tell(self._core.tick(self._clock.now()))

    def _tell(self, changes: list[Change]) -> None:
        for change in changes:
            member = change.member
            level = logging.INFO if change.kind is not ChangeKind.SUSPECT else logging.WARNING
            log.log(
                level,
                "member %s",
                change.kind,
                extra={"member": member.id, "role": member.role, "state": member.state},
            )
            if self._on_change is not None:
                self._on_change(change)
