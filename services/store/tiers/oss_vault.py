"""The oss tier's bytes: one object per record in a bucket of any S3-compatible server.

The bucket is shared by all nodes of a mesh: what one wrote, others find at their next start. An
object that another node removed is simply missing.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from moonpool.kv.checksum import bad_chunks
from moonpool.messages import MoonpoolError
from services.store.tiers.errors import (
    RecordDamaged,
    RecordMissing,
    VaultAway,
    VaultReadOnly,
    VaultRefused,
)
from services.store.tiers.oss_names import object_name, parse_name
from services.store.tiers.record import header_bytes, pack_header, unpack_header
from services.store.tiers.vault import Item

R = TypeVar("R")

THREADS = 8
OBJECT_MAX_BYTES = 64 << 20
CONNECT_S = 2.0
SILENCE_S = 3.0  # longest wait for the server's next bytes
PATIENCE_S = 6.0  # for one object, all tries together, ..
SLOWEST_BYTES_PER_S = 4 << 20  # .. and for its bytes on top
TRIES_MAX = 3
PART_BYTES = 1 << 20
PAGE_OBJECTS = 1000

_CREDENTIALS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}
_FULL = {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "MethodNotAllowed"}
_GONE = {"NoSuchKey", "404", "NotFound"}


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where it is, and who we are there."""

    endpoint: str
    name: str
    access_key: str
    secret_key: str
    region: str


class OssVault:
    """A `Vault`. Uploads are not signed over their bytes: each record proves itself."""

    name = "oss"
    is_local = False

    def __init__(self, bucket: Bucket, mesh: str) -> None:
        """Connects to nothing yet. ValueError when the endpoint is no URL."""
        self._bucket = bucket
        self._mesh = mesh
        self._rng = random.Random()
        self._client = make_client(bucket)

    def open(self) -> Iterator[list[Item]]:
        token: dict[str, str] = {}
        while True:
            page = self._try(partial(self._list, **token), 0, "list")
            objects = sorted(page.get("Contents", []), key=lambda each: each["LastModified"])
            named = [parse_name(self._mesh, each["Key"]) for each in objects]
            yield [Item(facts, 0) for facts in named if facts is not None]
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def write(self, item: Item, checksums: bytes, payload: memoryview) -> None:
        facts = item.facts
        if bad_chunks(payload, facts.chunk_bytes, checksums):
            raise RecordDamaged(f"{facts.key.hex()} was damaged before it was written")
        body = b"".join((pack_header(facts, checksums), payload))
        name = object_name(self._mesh, facts)
        self._try(
            lambda: self._client.put_object(Bucket=self._bucket.name, Key=name, Body=body),
            len(body),
            "write",
        )

    def read(self, item: Item, target: memoryview) -> bytes:
        facts = item.facts
        header = memoryview(bytearray(header_bytes(facts.size_bytes, facts.chunk_bytes)))
        name = object_name(self._mesh, facts)
        size_bytes = header.nbytes + facts.size_bytes
        self._try(lambda: self._fill(name, [header, target]), size_bytes, "read")
        found, checksums = unpack_header(header)
        if (found.key, found.size_bytes, found.chunk_bytes) != (
            facts.key,
            facts.size_bytes,
            facts.chunk_bytes,
        ):
            raise RecordMissing(f"another record bears the name of {facts.key.hex()}")
        if bad_chunks(target, facts.chunk_bytes, checksums):
            raise RecordDamaged(f"{facts.key.hex()} is damaged in the bucket")
        return checksums

    def sync(self) -> None:
        """What the server has acknowledged, it keeps."""

    def erase(self, item: Item) -> None:
        name = object_name(self._mesh, item.facts)
        self._try(
            lambda: self._client.delete_object(Bucket=self._bucket.name, Key=name), 0, "write"
        )

    def probe(self) -> None:
        self._try(lambda: self._list(MaxKeys=1), 0, "list")

    def close(self) -> None:
        """Idempotent."""
        self._client.close()

    def _list(self, **more: Any) -> Any:
        given = {"MaxKeys": PAGE_OBJECTS, **more}
        return self._client.list_objects_v2(
            Bucket=self._bucket.name, Prefix=f"{self._mesh}/", **given
        )

    def _fill(self, name: str, views: list[memoryview]) -> None:
        """Fills the views one after the other with the object's bytes."""
        reply = self._client.get_object(Bucket=self._bucket.name, Key=name)
        size_bytes = sum(view.nbytes for view in views)
        ends_s = time.monotonic() + _patience_s(size_bytes)
        with reply["Body"] as body:
            if reply["ContentLength"] != size_bytes:
                raise RecordDamaged(f"{name} has {reply['ContentLength']} bytes")
            for view in views:
                done = 0
                while done < view.nbytes:
                    part = body.read(min(PART_BYTES, view.nbytes - done))
                    if not part or time.monotonic() > ends_s:
                        raise VaultAway(f"{self._bucket.name}: too slow")
                    view[done : done + len(part)] = part
                    done += len(part)

    def _try(self, do: Callable[[], R], size_bytes: int, kind: str) -> R:
        """`do`, again with growing pauses while that may help. `kind`: read, write or list."""
        ends_s = time.monotonic() + _patience_s(size_bytes)
        tries = 0
        while True:
            tries += 1
            try:
                return do()
            except MoonpoolError:
                raise
            except (ClientError, BotoCoreError, HTTPError, OSError) as error:
                told = _told(error, kind, self._bucket)
                pause_s = 0.1 * 2**tries * (0.5 + self._rng.random())
                is_last = tries == TRIES_MAX or time.monotonic() + pause_s > ends_s
                if is_last or not isinstance(told, VaultAway):
                    raise told from error
            time.sleep(pause_s)


def make_client(bucket: Bucket) -> Any:
    """A client with our patience instead of boto3's; safe for threads."""
    config = Config(
        signature_version="s3v4",
        s3={"payload_signing_enabled": False, "addressing_style": "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        connect_timeout=CONNECT_S,
        read_timeout=SILENCE_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=THREADS,
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=bucket.endpoint,
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        region_name=bucket.region,
        config=config,
    )


def _patience_s(size_bytes: int) -> float:
    return PATIENCE_S + size_bytes / SLOWEST_BYTES_PER_S


def _told(error: Exception, kind: str, bucket: Bucket) -> MoonpoolError:
    """The server's answer in our words."""
    where = f"{bucket.endpoint} {bucket.name}"
    if not isinstance(error, ClientError):
        return VaultAway(f"{where}: {type(error).__name__}")
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = f"{where}: {code or status}"
    if code == "NoSuchBucket":
        return VaultRefused(f"{text}: no such bucket")
    if code in _GONE and kind == "read":
        return RecordMissing(text)
    if code in _CREDENTIALS:
        return VaultRefused(f"{text}: wrong credentials")
    if kind == "write" and (status == 403 or code in _FULL or status in (405, 507)):
        return VaultReadOnly(text)
    if status in (400, 401, 403, 404):
        return VaultRefused(text)
    return VaultAway(text)
