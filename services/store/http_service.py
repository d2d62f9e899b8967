"""The HTTP face as a part of a node: its port, its own way into the pool, a client per tenant."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moonpool.client import StoreClient
from moonpool.messages import TenantId
from moonpool.runtime import Members, ServiceContext, start_transfer
from moonpool.runtime.api_keys import ApiKeys
from moonpool.runtime.http_server import HttpServer, listen
from moonpool.settings import StoreSettings
from services.store.http_face import HttpFace

GRACE_S = 2.0


@asynccontextmanager
async def http_if_wanted(
    context: ServiceContext[StoreSettings], run_folder: str
) -> AsyncIterator[None]:
    """The face while inside, if its port is set."""
    if not context.settings.store_http_port:
        yield
        return
    async with http_face(context, run_folder):
        yield


@asynccontextmanager
async def http_face(context: ServiceContext[StoreSettings], run_folder: str) -> AsyncIterator[int]:
    """Serves while inside; the port. Raises PortTaken, SettingsError."""
    settings = context.settings
    keys = ApiKeys(settings.store_http_keys, "STORE_HTTP_KEYS")
    variables = "MOONPOOL_STORE_HTTP_HOST and MOONPOOL_STORE_HTTP_PORT"
    listener = listen(settings.store_http_host, settings.store_http_port, variables)
    try:
        transfer = await start_transfer(context, run_folder, name=f"{context.id}-http")
    except BaseException:
        listener.close()
        raise
    members = Members(context.bus, context.subjects, context.clock)
    clients: dict[TenantId, StoreClient] = {}  # no more than there are keys

    async def client_of(tenant: TenantId) -> StoreClient:
        if tenant not in clients:
            clients[tenant] = StoreClient(
                context.bus, transfer, members, context.subjects, tenant, host_id=context.host_id
            )
        return clients[tenant]

    server = HttpServer(HttpFace(keys, client_of).app(), listener)
    serving = asyncio.create_task(server.run(), name="store: http")
    try:
        async with members:
            context.log.info(
                "serving http", extra={"host": settings.store_http_host, "port": server.port}
            )
            yield server.port
            await server.stop(serving, GRACE_S)
    finally:
        await server.stop(serving, 0.0)
        listener.close()
        await transfer.close()
