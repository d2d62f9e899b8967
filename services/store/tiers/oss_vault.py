"""The oss tier's bytes: one object per record in a bucket of any S3-compatible server.

The bucket is shared by all nodes of a mesh: what one wrote, others find at their next start. An
object that another node removed is simply missing.
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
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
from services.store.tiers.oss_body import Bodies
from services.store.tiers.oss_names import object_name, parse_name
from services.store.tiers.oss_parts import pieces, ranges
from services.store.tiers.record import header_bytes, pack_header, unpack_header
from services.store.tiers.vault import Item

R = TypeVar("R")

THREADS = 8
PART_THREADS = 8  # parts of large objects under way at a time, all objects together
OBJECT_MAX_BYTES = (1 << 30) + (8 << 20)  # a value of 1 GiB, as its writer frames it
CONNECT_S = 2.0
SILENCE_S = 3.0  # longest wait for the server's next bytes
PATIENCE_S = 6.0  # for one object, all tries together, ..
SLOWEST_BYTES_PER_S = 4 << 20  # .. and for its bytes on top
TRIES_MAX = 3
READ_BYTES = 1 << 20
PAGE_OBJECTS = 1000
STALE_S = 3600.0  # after it an upload in parts is abandoned

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
    is_shared = True

    def __init__(self, bucket: Bucket, mesh: str) -> None:
        """Connects to nothing yet. ValueError when the endpoint is no URL."""
        self._bucket = bucket
        self._mesh = mesh
        self._rng = random.Random()
        self._client = make_client(bucket)
        self._bodies = Bodies(
            self._client,
            bucket.name,
            connect_s=CONNECT_S,
            silence_s=SILENCE_S,
            threads=THREADS + PART_THREADS,
        )
        self._parts = ThreadPoolExecutor(PART_THREADS, thread_name_prefix="oss-parts")

    def open(self) -> Iterator[list[Item]]:
        token: dict[str, str] = {}
        while True:
            page = self._try(partial(self._list, **token), 0, "list")
            objects = sorted(page.get("Contents", []), key=lambda each: each["LastModified"])
            named = [parse_name(self._mesh, each["Key"]) for each in objects]
            yield [Item(facts, 0) for facts in named if facts is not None]
            if not page.get("IsTruncated"):
                self._abort_stale()
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def write(self, item: Item, checksums: bytes, payload: memoryview) -> None:
        facts = item.facts
        if bad_chunks(payload, facts.chunk_bytes, checksums):
            raise RecordDamaged(f"{facts.key.hex()} was damaged before it was written")
        buffers = [memoryview(pack_header(facts, checksums)), payload]
        name = object_name(self._mesh, facts)
        parts = ranges(sum(buffer.nbytes for buffer in buffers))
        if len(parts) > 1:
            self._write_parts(name, buffers, parts)
            return
        body = b"".join(buffers)
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
        parts = ranges(size_bytes)
        if len(parts) > 1:
            self._read_parts(name, [header, target], parts)
        else:
            self._try(lambda: self._fill(name, [header, target], None), size_bytes, "read")
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
        self._parts.shutdown(wait=True, cancel_futures=True)
        self._bodies.close()
        self._client.close()

    def _abort_stale(self) -> None:
        """Uploads that nobody finished keep their parts on the server: those of crashed nodes."""
        where = {"Bucket": self._bucket.name}
        with contextlib.suppress(ClientError, BotoCoreError, HTTPError, OSError):
            found = self._client.list_multipart_uploads(Prefix=f"{self._mesh}/", **where)
            for upload in found.get("Uploads", []):
                age_s = time.time() - upload["Initiated"].timestamp()
                if age_s > STALE_S and upload["Key"].startswith(f"{self._mesh}/"):
                    self._client.abort_multipart_upload(
                        Key=upload["Key"], UploadId=upload["UploadId"], **where
                    )

    def _list(self, **more: Any) -> Any:
        given = {"MaxKeys": PAGE_OBJECTS, **more}
        return self._client.list_objects_v2(
            Bucket=self._bucket.name, Prefix=f"{self._mesh}/", **given
        )

    def _write_parts(
        self, name: str, buffers: list[memoryview], parts: list[tuple[int, int]]
    ) -> None:
        """Parts side by side; they become the object in one step at the end, or nothing does."""
        where = {"Bucket": self._bucket.name, "Key": name}
        begun = self._try(lambda: self._client.create_multipart_upload(**where), 0, "write")
        upload = {**where, "UploadId": begun["UploadId"]}

        def send(number: int, first: int, end: int) -> dict[str, Any]:
            body = b"".join(pieces(buffers, first, end))
            sent = self._try(
                lambda: self._client.upload_part(PartNumber=number, Body=body, **upload),
                len(body),
                "write",
            )
            return {"PartNumber": number, "ETag": sent["ETag"]}

        try:
            done = self._side_by_side(
                [partial(send, n, *part) for n, part in enumerate(parts, start=1)]
            )
            self._try(
                lambda: self._client.complete_multipart_upload(
                    MultipartUpload={"Parts": done}, **upload
                ),
                0,
                "write",
            )
        except MoonpoolError:
            with contextlib.suppress(ClientError, BotoCoreError, HTTPError, OSError):
                self._client.abort_multipart_upload(**upload)  # else the server keeps the parts
            raise

    def _read_parts(
        self, name: str, buffers: list[memoryview], parts: list[tuple[int, int]]
    ) -> None:
        def fetch(first: int, end: int) -> None:
            views = pieces(buffers, first, end)
            self._try(lambda: self._fill(name, views, (first, end)), end - first, "read")

        self._side_by_side([partial(fetch, *part) for part in parts])

    def _side_by_side(self, jobs: list[Callable[[], R]]) -> list[R]:
        """Their results in order. Returns or raises only when none of them runs any more: what
        they read from and write to is the caller's."""
        try:
            futures = [self._parts.submit(job) for job in jobs]
        except RuntimeError:
            raise VaultAway(f"{self._bucket.name}: closed") from None
        done, late = wait(futures, return_when=FIRST_EXCEPTION)
        for future in late:
            future.cancel()
        wait(futures)
        for future in done:
            future.result()
        return [future.result() for future in futures]

    def _fill(self, name: str, views: list[memoryview], window: tuple[int, int] | None) -> None:
        """Fills the views one after the other with the object's bytes, or with those of a part."""
        size_bytes = sum(view.nbytes for view in views)
        ends_s = time.monotonic() + _patience_s(size_bytes)
        with self._bodies.open(name, window) as body:
            if body.size_bytes != size_bytes:
                raise RecordDamaged(f"{name} has {body.size_bytes} bytes")
            for view in views:
                done = 0
                while done < view.nbytes:
                    got = body.fill(view[done : done + READ_BYTES])
                    if not got or time.monotonic() > ends_s:
                        raise VaultAway(f"{self._bucket.name}: too slow")
                    done += got

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
        max_pool_connections=THREADS + PART_THREADS,
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
