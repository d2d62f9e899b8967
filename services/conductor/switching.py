"""Carries out what `roles.py` decides: the first conductor by id tells instances what to do."""

import logging

from moonpool.bus import Bus
from moonpool.clock import Clock
from moonpool.messages.advice import RoleReply, RoleRequest
from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import MoonpoolError
from moonpool.messages.subjects import Subjects
from services.conductor.advice import Advisor
from services.conductor.fleet import INSTANCE_ROLES, Fleet, Health, Member
from services.conductor.roles import Dual, Order, RoleSwitcher, Sides

EVERY_S = 1.0
_TIMEOUT_S = 2.0


class RoleKeeper:
    """`run` until cancelled."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        clock: Clock,
        fleet: Fleet,
        advisor: Advisor,
        id: str,
        log: logging.Logger,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._fleet = fleet
        self._advisor = advisor
        self._id = id
        self._log = log
        self._switchers: dict[str, RoleSwitcher] = {}
        self.told = 0
        self.failed = 0

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY_S)
            if self.leads():
                for order in self.orders(self._clock.now()):
                    await self._tell(order)

    def leads(self) -> bool:
        """Whether of all living conductors it is ours to speak."""
        return leads(self._id, self._fleet)

    def orders(self, now_s: float) -> list[Order]:
        """What should change now, at most one order per model."""
        by_model: dict[str, list[Member]] = {}
        for member in self._fleet.of_roles(INSTANCE_ROLES):
            if member.model and member.can_serve() and member.load:
                by_model.setdefault(member.model.model, []).append(member)
        found = []
        for model, members in by_model.items():
            duals = [_dual(member) for member in members if member.role == "colocated"]
            if not duals:
                continue
            prefills, decodes = self._advisor.needs(model, now_s)
            roles = [member.role for member in members]
            sides = Sides(prefills, decodes, roles.count("prefill"), roles.count("decode"))
            switcher = self._switchers.setdefault(model, RoleSwitcher())
            order = switcher.decide(sides, duals, now_s)
            if order:
                found.append(order)
        self._switchers = {m: s for m, s in self._switchers.items() if m in by_model}
        return found

    async def _tell(self, order: Order) -> None:
        subject, message = self._subjects.role(order.id), encode(RoleRequest(order.duty))
        try:
            reply = decode(await self._bus.request(subject, message, _TIMEOUT_S), RoleReply)
        except MoonpoolError as error:
            self.failed += 1
            self._log.warning("not told its duty member=%s error=%s", order.id, error)
            return
        self.told += 1
        self._log.info("told its duty member=%s duty=%s", order.id, reply.duty)

    def stats(self) -> dict[str, int]:
        return {"duties_told": self.told, "duties_failed": self.failed}


def leads(id: str, fleet: Fleet) -> bool:
    """Whether `id` is the first of all living conductors."""
    ids = [m.id for m in fleet if m.role == "conductor" and m.health is Health.ALIVE]
    return id == min(ids, default=id)


def _dual(member: Member) -> Dual:
    load = member.load
    assert load is not None
    return Dual(member.id, member.duty, load.running + load.reserved + load.queued_requests)
