"""Requests, publishes and endpoints by subject: all talk between services goes through here.

`NatsBus` on a real server, `MemoryBus` within one process; one contract suite over both. Used by
the shells of services and by shared runtime; cores never see it. It carries bytes and knows no
message kinds, and no bulk data: that is the transfer library's.
"""

from moonpool.bus.base import Bucket, Bus, Callback, Endpoint, Handler, Service, Subscription
from moonpool.bus.errors import (
    BadServer,
    BusClosed,
    BusUnavailable,
    NoResponder,
    PayloadTooLarge,
    RequestTimeout,
)
from moonpool.bus.memory import MemoryBroker, MemoryBus
from moonpool.bus.nats import NatsBus
from moonpool.bus.nats_link import without_password

__all__ = [
    "BadServer",
    "Bucket",
    "Bus",
    "BusClosed",
    "BusUnavailable",
    "Callback",
    "Endpoint",
    "Handler",
    "MemoryBroker",
    "MemoryBus",
    "NatsBus",
    "NoResponder",
    "PayloadTooLarge",
    "RequestTimeout",
    "Service",
    "Subscription",
    "without_password",
]
