"""A JetStream key-value bucket: what must outlive every process of a mesh."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import nats.errors
from nats.aio.client import Client
from nats.js.api import KeyValueConfig
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    Error,
    KeyNotFoundError,
    NoKeysError,
    NoStreamResponseError,
    NotFoundError,
    ServiceUnavailableError,
)
from nats.js.kv import KeyValue

from moonpool.bus.base import Callback, Subscription
from moonpool.bus.cancelling import cancel_marks, raise_if_cancelled
from moonpool.bus.errors import BusUnavailable
from moonpool.messages.errors import PeerError

REPLICAS = 3  # where servers form a cluster; one otherwise
ANSWER_MAX_S = 5.0
_AWAY = (
    nats.errors.NoRespondersError,
    nats.errors.TimeoutError,
    nats.errors.ConnectionClosedError,
    nats.errors.OutboundBufferLimitError,
    ServiceUnavailableError,
    NoStreamResponseError,
    asyncio.TimeoutError,
)
Subscribe = Callable[[str, Callback], Awaitable[Subscription]]


class NatsBucket:
    """A `Bucket`. It is made when it is first used."""

    def __init__(self, name: str, client: Callable[[], Client], subscribe: Subscribe) -> None:
        self._name = name
        self._client = client
        self._subscribe = subscribe

    async def put(self, key: str, value: bytes) -> None:
        with _asking(self._name):
            await (await self._open()).put(key, value)

    async def delete(self, key: str) -> None:
        with _asking(self._name):
            await (await self._open()).delete(key)

    async def get(self, key: str) -> bytes | None:
        with _asking(self._name):
            try:
                return (await (await self._open()).get(key)).value
            except KeyNotFoundError:
                return None

    async def entries(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        with _asking(self._name):
            try:
                watcher = await (await self._open()).watchall(ignore_deletes=True)
            except NoKeysError:
                return {}
            try:
                while True:
                    entry = await watcher.updates(ANSWER_MAX_S)  # type: ignore[no-untyped-call]
                    if entry is None:
                        break
                    found[entry.key] = entry.value or b""
            finally:
                await watcher.stop()  # type: ignore[no-untyped-call]
        return found

    async def watch(self, on_change: Callable[[str], None]) -> Subscription:
        before = f"$KV.{self._name}."

        async def hear(subject: str, _: bytes) -> None:
            on_change(subject.removeprefix(before))

        with _asking(self._name):
            return await self._subscribe(f"{before}>", hear)

    async def _open(self) -> KeyValue:
        stream = self._client().jetstream()
        try:
            return await stream.key_value(self._name)
        except (BucketNotFoundError, NotFoundError):
            pass
        try:
            return await stream.create_key_value(
                KeyValueConfig(bucket=self._name, history=1, replicas=REPLICAS)
            )
        except ServiceUnavailableError:
            raise
        except APIError:  # a single server keeps one copy
            return await stream.create_key_value(
                KeyValueConfig(bucket=self._name, history=1, replicas=1)
            )


@contextmanager
def _asking(bucket: str) -> Iterator[None]:
    """The library's errors in our words, and no cancellation lost in it."""
    marks = cancel_marks()
    try:
        yield
    except (*_AWAY, Error) as error:
        raise_if_cancelled(marks)
        raise _told(bucket, error) from error
    raise_if_cancelled(marks)


def _told(bucket: str, error: Exception) -> BusUnavailable | PeerError:
    if isinstance(error, _AWAY):
        return BusUnavailable(
            f"bucket {bucket}: JetStream does not answer ({type(error).__name__})"
        )
    return PeerError(f"JetStream refused bucket {bucket}: {error}")
