"""The store over HTTP, for programs in other languages: a thin face on the client library.

    PUT    /store/values/NAME    body: the value; 201, or 409 when the name is taken.
                                 ?replace=true: in place of what lies there.
                                 ?durable=true: 202 when it is stored, but a crash would lose it
    GET    /store/values/NAME    the value, or with `Range: bytes=A-B` a part of it
    HEAD   /store/values/NAME    whether it is there, and its length
    DELETE /store/values/NAME
    GET    /store/values         names that are there, ?prefix=..&limit=..
    GET    /store/stats          what the nodes hold

A key says who asks: each tenant sees its own values and no others. Errors are JSON:
{"error": {"code": .., "message": ..}}.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from moonpool.client import StoreClient
from moonpool.messages import MoonpoolError, TenantId
from moonpool.messages.errors import Blame
from moonpool.runtime.api_keys import ApiKeys
from services.store.http_answers import (
    NameTaken,
    NotThere,
    headers_of,
    read_window,
    require_text,
    status_of,
)
from services.store.http_bodies import Held, Share, read_body

VALUE_MAX_BYTES = 1 << 30
HELD_MAX_BYTES = VALUE_MAX_BYTES + (256 << 20)  # of bodies and answers in memory at a time
PIECE_BYTES = 1 << 20
LIST_MAX = 10_000

Clients = Callable[[TenantId], Awaitable[StoreClient]]


class HttpFace:
    """Handlers over one client per tenant."""

    def __init__(self, keys: ApiKeys, clients: Clients) -> None:
        self._keys = keys
        self._clients = clients
        self._held = Held(HELD_MAX_BYTES)

    def app(self) -> FastAPI:
        """No pages for people: this is for programs."""
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        app.add_exception_handler(MoonpoolError, _refuse)
        app.add_exception_handler(HTTPException, _no_route)
        app.add_exception_handler(RequestValidationError, _bad_value)
        app.add_exception_handler(Exception, _failed)
        value = "/store/values/{name:path}"
        app.add_api_route(value, self.put, methods=["PUT"])
        app.add_api_route(value, self.get, methods=["GET"])
        app.add_api_route(value, self.head, methods=["HEAD"])
        app.add_api_route(value, self.remove, methods=["DELETE"])
        app.add_api_route("/store/values", self.names, methods=["GET"])
        app.add_api_route("/store/stats", self.stats, methods=["GET"])
        return app

    async def put(
        self, request: Request, name: str, replace: bool = False, durable: bool = False
    ) -> Response:
        client = await self._client(request)
        claimed = request.headers.get("content-length", "")
        announced_bytes = int(claimed) if claimed.isdecimal() else None
        share = Share(self._held)
        try:
            body = await read_body(request.stream(), announced_bytes, VALUE_MAX_BYTES, share)
            if not await client.put(name, body, replace=replace):
                raise NameTaken(name)
            is_durable = durable and await client.secure(name)
        finally:
            await share.give_back()
        told = {"name": name, "size_bytes": len(body), "durable": is_durable}
        return JSONResponse(told, status_code=202 if durable and not is_durable else 201)

    async def get(self, request: Request, name: str) -> Response:
        client = await self._client(request)
        size_bytes = await client.size(name)
        if size_bytes is None:
            raise NotThere(name)
        window = read_window(request.headers.get("range"), size_bytes)
        want_bytes = size_bytes if window is None else window[1] - window[0]
        await self._held.take(want_bytes)
        try:
            if window is None:
                value = await client.get(name)
            else:
                value = await client.get_range(name, window[0], want_bytes)
        except BaseException:
            await self._held.give_back(want_bytes)
            raise
        if value is None:
            await self._held.give_back(want_bytes)
            raise NotThere(name)
        headers = {"content-length": str(len(value)), "accept-ranges": "bytes"}
        if window is not None:
            headers["content-range"] = f"bytes {window[0]}-{window[1] - 1}/{size_bytes}"
        return StreamingResponse(
            self._pieces(value, want_bytes),
            status_code=200 if window is None else 206,
            headers=headers,
            media_type="application/octet-stream",
        )

    async def head(self, request: Request, name: str) -> Response:
        size_bytes = await (await self._client(request)).size(name)
        if size_bytes is None:
            return Response(status_code=404)
        headers = {"content-length": str(size_bytes), "accept-ranges": "bytes"}
        return Response(headers=headers, media_type="application/octet-stream")

    async def remove(self, request: Request, name: str) -> Response:
        if not await (await self._client(request)).remove(name):
            raise NotThere(name)
        return Response(status_code=204)

    async def names(self, request: Request, prefix: str = "", limit: int = 1000) -> Response:
        client = await self._client(request)
        limit = max(1, min(limit, LIST_MAX))
        found: list[dict[str, Any]] = []
        more = False
        async for each in client.list_names(prefix):
            more = len(found) == limit
            if more:
                break
            found.append({"name": each.name, "size_bytes": each.size_bytes})
        return JSONResponse({"values": found, "more": more})

    async def stats(self, request: Request) -> Response:
        """Of all nodes; of tenants, the asker's own share alone."""
        client = await self._client(request)
        tenant = self._keys.identify(request.headers.get("authorization"))
        told = msgspec.to_builtins(await client.stats())
        for node in told.values():
            node["tenants"] = {t: s for t, s in node["tenants"].items() if t == tenant}
        return JSONResponse(told)

    async def _client(self, request: Request) -> StoreClient:
        tenant = self._keys.identify(request.headers.get("authorization"))
        require_text(request.scope.get("raw_path") or b"", request.scope["query_string"])
        return await self._clients(tenant)

    async def _pieces(self, value: bytes, held_bytes: int) -> AsyncIterator[memoryview]:
        """What a slow reader takes stays in memory until it has it, or goes."""
        try:
            view = memoryview(value)
            for start in range(0, len(view), PIECE_BYTES):
                yield view[start : start + PIECE_BYTES]
        finally:
            await self._held.give_back(held_bytes)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, MoonpoolError)
    message = "internal error" if error.blame is Blame.BUG else error.message
    return _error(status_of(error), error.code, message, headers_of(error))


async def _no_route(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself."""
    assert isinstance(error, HTTPException)
    code = {404: "route_not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    text = f"{request.method} {request.url.path}: {error.detail}"
    return _error(error.status_code, code, text, error.headers)


async def _bad_value(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _error(400, "invalid_value", f"{first['loc'][-1]}: {first['msg']}")


async def _failed(request: Request, error: Exception) -> Response:
    """Ours, and logged by the server."""
    return _error(500, "internal", "internal error")


def _error(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = {"error": {"code": code, "message": message}}
    return JSONResponse(body, status_code=status, headers=headers)
