"""Reading objects of an S3 server with little work: a signed address, and bytes straight into our
memory.

boto3 takes milliseconds of processor per answer and gives bytes, which would have to be copied. It
still does all that is not plainly "200, here are the bytes": errors, proxies, odd encodings.
"""

import http.client
from typing import Any
from urllib.request import getproxies

import urllib3
from botocore.httpsession import get_cert_path

from services.store.tiers.direct import copy_bytes

SIGNED_S = 300  # far longer than any read may take


class Body:
    """Of one answer, as a context; its connection is used again when all of it was read."""

    def __init__(self, stream: Any, size_bytes: int) -> None:
        """`stream`: boto3's, or urllib3's, of which the former is made."""
        self.size_bytes = size_bytes
        self._stream = stream
        self._raw: Any = getattr(stream, "_raw_stream", stream)
        plain: Any = getattr(self._raw, "_fp", None)
        is_plain = isinstance(plain, http.client.HTTPResponse) and not plain.chunked
        is_coded = is_plain and plain.getheader("content-encoding")
        self._plain: Any = plain if is_plain and not is_coded else None

    def fill(self, view: memoryview) -> int:
        """Bytes read to the start of `view`; 0 at the end. OSError and boto3's errors."""
        if self._plain is not None:
            got: int = self._plain.readinto(view)
            return got
        part = self._stream.read(view.nbytes)
        copy_bytes(view[: len(part)], memoryview(part))
        return len(part)

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._plain is not None and self._plain.isclosed():  # by itself, after its last byte
            self._raw.release_conn()
        self._stream.close()


class Bodies:
    """Of one bucket. Thread-safe."""

    def __init__(
        self, client: Any, bucket: str, *, connect_s: float, silence_s: float, threads: int
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._pool = urllib3.PoolManager(
            num_pools=2,
            maxsize=threads,
            retries=False,
            timeout=urllib3.Timeout(connect=connect_s, read=silence_s),
            ca_certs=get_cert_path(True),
        )
        self._is_direct = not getproxies()

    def open(self, name: str, window: tuple[int, int] | None) -> Body:
        """The object, or its bytes `[first, end)`. Raises boto3's and urllib3's errors, OSError."""
        ranged = {"Range": f"bytes={window[0]}-{window[1] - 1}"} if window else {}
        if self._is_direct:
            where = {"Bucket": self._bucket, "Key": name}
            url = self._client.generate_presigned_url("get_object", where, ExpiresIn=SIGNED_S)
            raw = self._pool.request("GET", url, headers=ranged, preload_content=False)
            if raw.status in (200, 206) and "content-length" in raw.headers:
                return Body(raw, int(raw.headers["content-length"]))
            raw.close()
        reply = self._client.get_object(Bucket=self._bucket, Key=name, **ranged)
        return Body(reply["Body"], reply["ContentLength"])

    def close(self) -> None:
        """Idempotent."""
        self._pool.clear()
