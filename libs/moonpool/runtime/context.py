"""What every service is handed at its start."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import moonpool
from moonpool.bus import Bus, Endpoint, Service
from moonpool.clock import Clock, RealClock
from moonpool.messages.registry import ModelRecord, Registration
from moonpool.messages.segments import Endpoint as TransferEndpoint
from moonpool.messages.subjects import Subjects
from moonpool.runtime.identity import host_id, new_epoch, new_id
from moonpool.settings import CommonSettings
from moonpool.telemetry import Metrics, names

S = TypeVar("S", bound=CommonSettings)


@dataclass(frozen=True, slots=True)
class ServiceContext(Generic[S]):
    """One process on the mesh."""

    settings: S
    role: str
    id: str
    epoch: str  # new at every start
    host_id: str
    version: str
    started_unix_s: float
    started_s: float  # on `clock`
    bus: Bus
    subjects: Subjects
    clock: Clock
    metrics: Metrics
    log: logging.Logger

    def registration(
        self,
        endpoints: Sequence[TransferEndpoint] = (),
        model: ModelRecord | None = None,
        url: str = "",
    ) -> Registration:
        """What we tell the mesh about ourselves."""
        return Registration(
            id=self.id,
            role=self.role,
            epoch=self.epoch,
            started_unix_s=self.started_unix_s,
            host_id=self.host_id,
            version=self.version,
            endpoints=list(endpoints),
            model=model,
            rack=self.settings.rack,
            zone=self.settings.zone,
            url=url,
        )

    async def serve(
        self, endpoints: Sequence[Endpoint], metadata: Mapping[str, str] | None = None
    ) -> Service:
        """Registers endpoints under our role and id: `nats micro ls` shows them."""
        known = {"epoch": self.epoch, "host_id": self.host_id, **(metadata or {})}
        return await self.bus.serve(self.role, self.id, self.version, endpoints, known)


def new_context(
    role: str,
    settings: S,
    bus: Bus,
    *,
    id: str = "",
    clock: Clock | None = None,
    metrics: Metrics | None = None,
    log: logging.Logger | None = None,
) -> ServiceContext[S]:
    """A context with a fresh epoch. `id` empty: as the settings say. CallerError on a bad id."""
    clock = clock if clock is not None else RealClock()
    metrics = metrics if metrics is not None else Metrics()
    name = id or new_id(role, settings.id)
    metrics.gauge(names.INFO, role, name, moonpool.__version__).set(1)
    return ServiceContext(
        settings=settings,
        role=role,
        id=name,
        epoch=new_epoch(),
        host_id=host_id(settings.host_id),
        version=moonpool.__version__,
        started_unix_s=clock.unix(),
        started_s=clock.now(),
        bus=bus,
        subjects=Subjects(settings.mesh),
        clock=clock,
        metrics=metrics,
        log=log if log is not None else logging.getLogger(f"moonpool.{role}"),
    )
