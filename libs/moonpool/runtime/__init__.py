"""What every service does at its start, while it lives and at its end, whatever its role.

Settings, logging, bus and signals (`run_service`), heartbeat, registration, who else is there, and
the events of those who hold blocks. Imported by services and by shared service libraries; it knows
no role's business.
"""

from moonpool.runtime.background import background, end
from moonpool.runtime.backoff import Backoff
from moonpool.runtime.context import ServiceContext, new_context
from moonpool.runtime.errors import RegistrationRefused, SnapshotExpired
from moonpool.runtime.heart import Heart
from moonpool.runtime.hello import say_hello
from moonpool.runtime.identity import advertise_host, host_id, new_epoch, new_id
from moonpool.runtime.kv_events import EventPublisher
from moonpool.runtime.kv_log import KvLog, Listing
from moonpool.runtime.members import Members
from moonpool.runtime.members_core import Change, ChangeKind, Member, MembersCore
from moonpool.runtime.pulse import observe_process, publish_metrics
from moonpool.runtime.service import give_up, run_service
from moonpool.runtime.transfer_start import start_transfer, tls_files
from moonpool.runtime.transfers import TransferMetrics

__all__ = [
    "Backoff",
    "Change",
    "ChangeKind",
    "EventPublisher",
    "Heart",
    "KvLog",
    "Listing",
    "Member",
    "Members",
    "MembersCore",
    "RegistrationRefused",
    "ServiceContext",
    "SnapshotExpired",
    "TransferMetrics",
    "advertise_host",
    "background",
    "end",
    "give_up",
    "host_id",
    "new_context",
    "new_epoch",
    "new_id",
    "observe_process",
    "publish_metrics",
    "run_service",
    "say_hello",
    "start_transfer",
    "tls_files",
]
