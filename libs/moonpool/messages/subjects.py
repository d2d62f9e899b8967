"""Every NATS subject, in one place. `prefix` keeps several meshes on one server apart."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subjects:
    prefix: str = "mp"

    @property
    def plan(self) -> str:
        return f"{self.prefix}.conductor.plan"

    @property
    def conductor_status(self) -> str:
        return f"{self.prefix}.conductor.status"

    @property
    def where(self) -> str:
        return f"{self.prefix}.conductor.where"

    @property
    def advise(self) -> str:
        return f"{self.prefix}.conductor.advise"

    @property
    def hello(self) -> str:
        return f"{self.prefix}.registry.hello"

    @property
    def heartbeat(self) -> str:
        return f"{self.prefix}.registry.heartbeat"

    @property
    def goodbye(self) -> str:
        return f"{self.prefix}.registry.goodbye"

    @property
    def roll(self) -> str:
        return f"{self.prefix}.registry.roll"

    def prefill(self, instance: str, verb: str) -> str:
        """verb: submit, cancel, ping"""
        return f"{self.prefix}.prefill.{instance}.{verb}"

    def decode(self, instance: str, verb: str) -> str:
        """verb: reserve, start, cancel, ping"""
        return f"{self.prefix}.decode.{instance}.{verb}"

    def role(self, instance: str) -> str:
        return f"{self.prefix}.instance.{instance}.role"

    def tokens(self, request: str) -> str:
        return f"{self.prefix}.tokens.{request}"

    def store(self, owner: str, verb: str) -> str:
        """verb: as in `messages.store`, from put_start to drain"""
        return f"{self.prefix}.store.{owner}.{verb}"

    def kv_events(self, owner: str = "*") -> str:
        return f"{self.prefix}.kv.events.{owner}"

    def kv_snapshot(self, owner: str) -> str:
        return f"{self.prefix}.kv.snapshot.{owner}"

    def load(self, instance: str = "*") -> str:
        return f"{self.prefix}.load.{instance}"

    def audit(self, tenant: str, event: str) -> str:
        return f"{self.prefix}.audit.{tenant}.{event}"

    def metrics(self, service: str, id: str) -> str:
        return f"{self.prefix}.metrics.{service}.{id}"
