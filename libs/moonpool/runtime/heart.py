"""Our heartbeat: who we are and how we are, each second, at every change, and when called."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from moonpool.bus import Bus, BusClosed, BusUnavailable, Subscription
from moonpool.clock import Clock
from moonpool.messages.codec import MalformedMessage, decode, encode
from moonpool.messages.registry import Goodbye, Heartbeat, Registration, RollCall
from moonpool.messages.subjects import Subjects
from moonpool.runtime.background import background, end
from moonpool.settings import SettingsError

PERIOD_S = 1.0
CALLS_GAP_S = 0.05  # many that start at once are answered with one beat
COMPANY_MAX = 4096  # ids; what a message can hold
STATES = ("starting", "ready", "draining")


class Heart:
    """`async with Heart(..) as heart:` beats inside; leaving says goodbye."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        clock: Clock,
        registration: Registration,
        state: str = "starting",
        state_file: str = "",
        company: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`state_file`: where each beat leaves the state for a health check to find; its age says
        how long ago that was. `company`: whom of our role we hear, for whoever calls the roll."""
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._registration = registration
        self._state = state
        self._state_file = state_file
        self._company = company
        self._beats = self._lost = self._malformed = 0
        self._changed, self._called = asyncio.Event(), asyncio.Event()
        self._subscription: Subscription | None = None
        self._beating: list[asyncio.Task[None]] = []

    @property
    def state(self) -> str:
        return self._state

    def set_state(self, state: str) -> None:
        """Tells everybody at once. ValueError on a state that no reader knows."""
        if state not in STATES:
            raise ValueError(f"state {state!r} is none of {STATES}")
        if state != self._state:
            self._state = state
            self._changed.set()

    async def start(self) -> None:
        """The first beat is out when it returns. Raises SettingsError when the state file can't
        be written."""
        try:
            await self._beat()
        except OSError as error:
            raise SettingsError(
                f"MOONPOOL_STATE_FILE={self._state_file!r}: {error.strerror}"
            ) from error
        self._subscription = await self._bus.subscribe(self._subjects.roll, self._on_roll)
        self._beating = [
            background(self._beat_each_second(), "heart"),
            background(self._beat_on_change(), "heart on change"),
            background(self._beat_on_call(), "heart on call"),
        ]

    async def close(self) -> None:
        """Stops and says goodbye. Idempotent."""
        if not self._beating:
            return
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()
        await end(self._beating)
        mine = self._registration
        await self._say(self._subjects.goodbye, encode(Goodbye(mine.id, mine.epoch)))

    def stats(self) -> dict[str, int]:
        return {"beats": self._beats, "lost": self._lost, "malformed": self._malformed}

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

    async def _beat_each_second(self) -> None:
        while True:
            await self._clock.sleep(PERIOD_S)
            await self._beat()

    async def _beat_on_change(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._beat()

    async def _on_roll(self, subject: str, payload: bytes) -> None:
        try:
            roles = decode(payload, RollCall).roles
        except MalformedMessage:
            self._malformed += 1
            return
        if not roles or self._registration.role in roles:
            self._called.set()

    async def _beat_on_call(self) -> None:
        while True:
            await self._called.wait()
            self._called.clear()
            await self._beat(list(self._company())[:COMPANY_MAX])
            await self._clock.sleep(CALLS_GAP_S)

    async def _beat(self, company: Sequence[str] = ()) -> None:
        self._beats += 1
        beat = Heartbeat(self._registration, self._state, list(company))
        await self._say(self._subjects.heartbeat, encode(beat))
        if self._state_file and self._bus.is_connected:
            self._leave_state()

    def _leave_state(self) -> None:
        """A few bytes, at once or not at all. Raises OSError."""
        fresh = Path(f"{self._state_file}.new")
        fresh.write_text(f"{self._state}\n", encoding="ascii")
        fresh.replace(self._state_file)

    async def _say(self, subject: str, payload: bytes) -> None:
        try:
            await self._bus.publish(subject, payload)
        except (BusUnavailable, BusClosed):
            self._lost += 1  # whoever waits for it notices; we beat on
