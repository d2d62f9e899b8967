"""A JetStream key-value bucket: what must outlive every process of a mesh."""

import asyncio
from collections.abc import Awaitable, Callable

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
        store = await self._open()
        try:
            await store.put(key, value)
        except (*_AWAY, Error) as error:
            raise _told(self._name, error) from error

    async def delete(self, key: str) -> None:
        store = await self._open()
        try:
            await store.delete(key)
        except (*_AWAY, Error) as error:
            raise _told(self._name, error) from error

    async def get(self, key: str) -> bytes | None:
        store = await self._open()
        try:
            return (await store.get(key)).value
        except KeyNotFoundError:
            return None
        except (*_AWAY, Error) as error:
            raise _told(self._name, error) from error

    async def entries(self) -> dict[str, bytes]:
        store = await self._open()
        found: dict[str, bytes] = {}
        try:
            watcher = await store.watchall(ignore_deletes=True)
            try:
                while True:
                    entry = await watcher.updates(ANSWER_MAX_S)  # type: ignore[no-untyped-call]
                    if entry is None:
                        break
                    found[entry.key] = entry.value or b""
            finally:
                await watcher.stop()  # type: ignore[no-untyped-call]
        except NoKeysError:
            return {}
        except (*_AWAY, Error) as error:
            raise _told(self._name, error) from error
        return found

    async def watch(self, on_change: Callable[[str], None]) -> Subscription:
        before = f"$KV.{self._name}."

        async def hear(subject: str, _: bytes) -> None:
            on_change(subject.removeprefix(before))

        return await self._subscribe(f"{before}>", hear)

    async def _open(self) -> KeyValue:
        stream = self._client().jetstream()
        try:
            try:
                return await stream.key_value(self._name)
            except (BucketNotFoundError, NotFoundError):
                pass
            try:
                return await stream.create_key_value(
                    KeyValueConfig(bucket=self._name, history=1, replicas=REPLICAS)
                )
            except APIError:  # a single server keeps one copy
                return await stream.create_key_value(
                    KeyValueConfig(bucket=self._name, history=1, replicas=1)
                )
        except (*_AWAY, Error) as error:
            raise _told(self._name, error) from error


def _told(bucket: str, error: Exception) -> BusUnavailable | PeerError:
    if isinstance(error, _AWAY):
        return BusUnavailable(
            f"bucket {bucket}: JetStream does not answer ({type(error).__name__})"
        )
    return PeerError(f"JetStream refused bucket {bucket}: {error}")
