"""An owner's memory on our own host, entered for a moment at a time, without a message for each."""

from typing import Self

from moonpool.messages.segments import RegionGrant
from moonpool.transfer.engine import TransferEngine
from moonpool.transfer.errors import BadTransfer, GrantRefused, PeerLost
from moonpool.transfer.mapping import Hold, Mapper, mapper_of
from moonpool.transfer.remote import OpenedGrant


class Nearby:
    """One grant. Belongs to the loop of its engine."""

    def __init__(self, engine: TransferEngine, remote: OpenedGrant, mapper: Mapper) -> None:
        self._engine = engine
        self._remote = remote
        self._mapper = mapper

    @classmethod
    def of(cls, engine: TransferEngine, grant: RegionGrant) -> Self | None:
        """None where the two share no memory."""
        try:
            remote = engine.open(grant)
            return cls(engine, remote, mapper_of(remote))
        except (BadTransfer, GrantRefused):
            return None

    async def enter(self) -> Hold:
        """We are in the owner's memory, and it waits for us, until `let_go`. What was read counts
        if `problem` says nothing afterwards. Raises as `map_remote`."""
        try:
            return self._mapper.hold(self._remote)
        except (PeerLost, GrantRefused):  # not connected yet, or not any more
            (await self._engine.map_remote(self._remote)).release()
            return self._mapper.hold(self._remote)

    def view(self, hold: Hold) -> memoryview:
        """The granted range; other processes write in it."""
        grant = self._remote.grant
        return memoryview(hold.memory.array)[grant.offset : grant.offset + grant.length]
