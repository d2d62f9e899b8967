"""A record as it lies in a lower tier: a header of whole pages, then the object's bytes.

The header holds what the object is and a checksum per chunk, under a CRC of its own. So a record
can be believed or refused by itself: torn, misplaced, of another version or flipped ones differ.
"""

import struct
import zlib
from typing import NamedTuple

from moonpool.kv import BlockKey
from moonpool.kv.checksum import CHECKSUM_BYTES
from moonpool.messages.ids import TenantId
from services.store.tiers.errors import RecordDamaged

PAGE_BYTES = 4096
HEADER_MAX_BYTES = 1 << 20  # objects of more chunks stay in dram

_MAGIC = b"MPRECORD"
_VERSION = 1
# magic, version, key, serial, size, chunk, bytes of checksums, tenant, CRC of all and checksums
_HEAD = struct.Struct("<8sH16sQQQI64sI")


HEAD_BYTES = _HEAD.size  # of a header, before its checksums


class Facts(NamedTuple):
    """What an object is, apart from its bytes. Millions are made at a start: a tuple is quick."""

    key: BlockKey
    tenant: TenantId
    size_bytes: int
    chunk_bytes: int  # divides size_bytes
    serial: int  # of this writing: unique in a tier, rising; 0 where nobody knows


def round_up(size_bytes: int) -> int:
    """To whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def header_bytes(size_bytes: int, chunk_bytes: int) -> int:
    """Length of the header of such an object."""
    return round_up(_HEAD.size + size_bytes // chunk_bytes * CHECKSUM_BYTES)


def record_bytes(size_bytes: int, chunk_bytes: int) -> int:
    """What such an object takes: header and bytes, each in whole pages."""
    return header_bytes(size_bytes, chunk_bytes) + round_up(size_bytes)


def pack_header(facts: Facts, checksums: bytes) -> bytes:
    """The header, padded to whole pages."""
    head = _packed(facts, checksums, 0)
    crc = zlib.crc32(checksums, zlib.crc32(head))
    raw = _packed(facts, checksums, crc) + checksums
    return raw.ljust(header_bytes(facts.size_bytes, facts.chunk_bytes), b"\0")


def unpack_header(view: memoryview) -> tuple[Facts, bytes]:
    """(facts, checksums) from the start of a record. RecordDamaged when it is none, or torn."""
    if view.nbytes < _HEAD.size:
        raise RecordDamaged(f"a header of {view.nbytes} bytes")
    magic, version, key, serial, size, chunk, sums_bytes, tenant, crc = _HEAD.unpack_from(view)
    if magic != _MAGIC or version != _VERSION:
        raise RecordDamaged("no record starts here")
    checksums = bytes(view[_HEAD.size : _HEAD.size + sums_bytes])
    facts = Facts(BlockKey(key), _tenant_of(tenant), size, chunk, serial)
    if zlib.crc32(checksums, zlib.crc32(_packed(facts, checksums, 0))) != crc:
        raise RecordDamaged(f"the header of {key.hex()} is torn or damaged")
    if chunk < 1 or size % chunk or len(checksums) != size // chunk * CHECKSUM_BYTES:
        raise RecordDamaged(f"the header of {key.hex()} contradicts itself")
    return facts, checksums


def _packed(facts: Facts, checksums: bytes, crc: int) -> bytes:
    return _HEAD.pack(
        _MAGIC,
        _VERSION,
        facts.key,
        facts.serial,
        facts.size_bytes,
        facts.chunk_bytes,
        len(checksums),
        facts.tenant.encode("ascii"),
        crc,
    )


def _tenant_of(raw: bytes) -> TenantId:
    return TenantId(raw.rstrip(b"\0").decode("ascii", errors="replace"))
