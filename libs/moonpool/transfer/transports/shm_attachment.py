"""What a link of shm holds: a connection to the owner, and the grants that the owner confirmed."""

import select
import socket
import time
from dataclasses import dataclass, field

from moonpool.transfer.memory import Memory


@dataclass(slots=True, eq=False)
class Connection:
    """One socket to the owner. It is closed when it is lost *and* no copy runs any more: the owner
    takes the end of file as the word that we are out of its memory."""

    sock: socket.socket
    news: select.poll  # says at little cost whether there is anything to read
    greeted: bool = False
    lost: bool = False
    copies: int = 0  # under way

    def close_if_unused(self) -> None:
        if self.lost and not self.copies:
            self.sock.close()


@dataclass(slots=True, eq=False)
class Attachment:
    """A grant that the owner has confirmed, and the mapping it leads to."""

    connection: Connection
    memory: Memory
    region: int
    key: bytes = field(repr=False)
    rights: str  # as the owner says, whatever the grant in the holder's hand says
    expires_unix_s: float
    withdrawn: bool = False
    copies: int = 0  # under way

    @property
    def fresh(self) -> bool:
        """May be used without asking the owner again."""
        expires = self.expires_unix_s
        return not self.withdrawn and (not expires or time.time() < expires)
