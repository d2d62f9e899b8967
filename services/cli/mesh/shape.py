"""What a local mesh is to consist of."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.cli.mesh.errors import MeshRefused

DEFAULT_MODEL = "smollm2-135m-instruct"
ROLES = ("conductor", "store", "prefill", "decode", "colocated", "gateway")


@dataclass(frozen=True, slots=True)
class MeshShape:
    """How many processes of each role, and the model that they serve."""

    prefill: int = 1
    decode: int = 1
    store: int = 1
    colocated: int = 0
    gateway: int = 1
    conductor: int = 1
    model: str = DEFAULT_MODEL
    dtype: str = "auto"

    def check(self) -> None:
        """Raises MeshRefused when no request could ever be answered."""
        for role in ROLES:
            if getattr(self, role) < 0:
                raise MeshRefused(f"--{role} can't be negative")
        if self.gateway < 1 or self.conductor < 1:
            raise MeshRefused("a mesh needs at least one gateway and one conductor")
        if self.colocated == 0 and (self.prefill == 0 or self.decode == 0):
            raise MeshRefused(
                "a mesh needs a prefill and a decode instance, or a colocated one: "
                "--prefill 1 --decode 1, or --colocated 1"
            )

    @property
    def instances(self) -> int:
        return self.prefill + self.decode + self.colocated

    def names(self) -> Iterator[tuple[str, str]]:
        """(name, role) of every service, for example ("decode-1", "decode")."""
        for role in ROLES:
            for number in range(1, getattr(self, role) + 1):
                yield f"{role}-{number}", role

    def __str__(self) -> str:
        parts = [f"{getattr(self, role)} {role}" for role in ROLES if getattr(self, role)]
        return ", ".join(parts)
