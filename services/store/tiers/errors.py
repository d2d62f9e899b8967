"""What a vault can answer instead of bytes.

PeerError
├── VaultAway      slow, failing or unreachable: the same may work later
├── VaultRefused   there, but not for us: credentials, a missing bucket or folder, no direct I/O
└── VaultReadOnly  takes nothing new; what it has can be read
CorruptionError
├── RecordDamaged  bytes are not what was written: dropped
└── RecordMissing  not there any more
"""

from moonpool.messages.errors import CorruptionError, PeerError


class VaultAway(PeerError):
    code = "tier_away"


class VaultRefused(PeerError):
    code = "tier_refused"


class VaultReadOnly(PeerError):
    code = "tier_read_only"


class RecordDamaged(CorruptionError):
    code = "record_damaged"


class RecordMissing(CorruptionError):
    code = "record_missing"
