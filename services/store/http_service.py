"""The HTTP face as a part of a node: its port, its own way into the pool, a client per tenant."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass

from moonpool.client import StoreClient
from moonpool.messages import TenantId
from moonpool.runtime import Members, ServiceContext, start_transfer
from moonpool.runtime.api_keys import ApiKeys
from moonpool.runtime.http_server import HttpServer, listen
from moonpool.settings import StoreSettings
from services.store.http_face import HttpFace

GRACE_S = 2.0
GATHER_S = 2.0


@dataclass(frozen=True, slots=True)
class Door:
    """Who may come in, and where; it opens when the face serves."""

    keys: ApiKeys
    listener: socket.socket


@contextmanager
def http_door(settings: StoreSettings) -> Iterator[Door | None]:
    """Checks what was set, and takes the port, before anybody hears of the node; None: no face is
    wanted. Raises PortTaken, SettingsError."""
    keys = ApiKeys(settings.store_http_keys, "STORE_HTTP_KEYS")
    if not settings.store_http_port:
        yield None
        return
    variables = "MOONPOOL_STORE_HTTP_HOST and MOONPOOL_STORE_HTTP_PORT"
    listener = listen(settings.store_http_host, settings.store_http_port, variables)
    with closing(listener):
        yield Door(keys, listener)


@asynccontextmanager
async def http_if_wanted(
    context: ServiceContext[StoreSettings], run_folder: str, door: Door | None
) -> AsyncIterator[None]:
    """The face while inside, if there is a door."""
    if door is None:
        yield
        return
    async with http_face(context, run_folder, door):
        yield


@asynccontextmanager
async def http_face(
    context: ServiceContext[StoreSettings], run_folder: str, door: Door
) -> AsyncIterator[int]:
    """Serves while inside; the port."""
    transfer = await start_transfer(context, run_folder, name=f"{context.id}-http")
    members = Members(context.bus, context.subjects, context.clock, calls=("store",))
    clients: dict[TenantId, StoreClient] = {}  # no more than there are keys

    async def client_of(tenant: TenantId) -> StoreClient:
        await members.gather("store", GATHER_S)  # all but the first moments: at once
        if tenant not in clients:
            clients[tenant] = StoreClient(
                context.bus, transfer, members, context.subjects, tenant, host_id=context.host_id
            )
        return clients[tenant]

    server = HttpServer(HttpFace(door.keys, client_of).app(), door.listener)
    serving = asyncio.create_task(server.run(), name="store: http")
    try:
        async with members:
            where = {"host": context.settings.store_http_host, "port": server.port}
            context.log.info("serving http", extra=where)
            yield server.port
            await server.stop(serving, GRACE_S)
    finally:
        await server.stop(serving, 0.0)
        await transfer.close()
