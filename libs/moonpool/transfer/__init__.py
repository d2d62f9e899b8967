"""Moves bulk bytes between registered memory of two processes: shared memory on one host, tcp else.

Used by prefill, decode, the store and outside programs. Knows regions, grants and ranges; never
blocks, keys or models. Start with `TransferEngine.start`.
"""

from moonpool.transfer.base import Op, Priority, TransferRequest
from moonpool.transfer.batch import TransferBatch
from moonpool.transfer.buffers import Buffer, BufferPool
from moonpool.transfer.engine import TransferEngine
from moonpool.transfer.errors import (
    BadTopology,
    BadTransfer,
    GrantRefused,
    PeerLost,
    PeerUntrusted,
    RegionClosed,
    TransferBusy,
    TransferCancelled,
    TransferCorrupt,
    TransferTimeout,
)
from moonpool.transfer.mapping import MappedView
from moonpool.transfer.nearby import Nearby
from moonpool.transfer.regions import LocalRegion
from moonpool.transfer.remote import OpenedGrant
from moonpool.transfer.tls import TlsFiles

__all__ = [
    "BadTopology",
    "BadTransfer",
    "Buffer",
    "BufferPool",
    "GrantRefused",
    "LocalRegion",
    "MappedView",
    "Nearby",
    "Op",
    "OpenedGrant",
    "PeerLost",
    "PeerUntrusted",
    "Priority",
    "RegionClosed",
    "TlsFiles",
    "TransferBatch",
    "TransferBusy",
    "TransferCancelled",
    "TransferCorrupt",
    "TransferEngine",
    "TransferRequest",
    "TransferTimeout",
]
