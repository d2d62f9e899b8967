"""How a peer's registered memory is named and reached: what the transfer library hands around."""

import msgspec


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """One way to reach a segment."""

    transport: str  # "shm", "tcp", "rdma"
    address: str  # shm: path of a Unix socket; tcp: "host:port" or "[v6]:port"
    # how near the owner's NIC there is to the memory: 0 preferred, 1 other, 2 not named
    rank: int = 0
    nic: str = ""  # the owner's name for that NIC; "": there is but one, or none


class RegionGrant(msgspec.Struct, frozen=True):
    """A capability: the right to read or write `[offset, offset + length)` of a region.

    Whoever holds it may use it until it expires or is revoked; reachability alone is no permission.
    """

    segment: str  # name of the owner's transfer engine
    epoch: str  # new at each start of the owner: a grant of an earlier life is refused
    host_id: str  # the `shm` endpoint is tried only when this equals our own
    endpoints: list[Endpoint]
    region: int
    offset: int  # into the region, in bytes
    length: int  # in bytes
    rights: str  # "r", "w" or "rw"
    key: bytes  # 16 random bytes; never printed
    expires_unix_s: float = 0.0  # 0: with the owner

    def __repr__(self) -> str:
        """Without the key: what is printed ends in logs, and the key is the capability."""
        return (
            f"<RegionGrant {self.rights} of {self.segment}/{self.region}"
            f"[{self.offset}, +{self.length}), epoch {self.epoch}>"
        )
