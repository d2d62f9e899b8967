"""The HTTP routes. Every error, also those of the framework, is OpenAI's error object."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from moonpool.runtime import observe_process
from services.gateway.core import fleet
from services.gateway.core.errors import ApiError, BadInput, Internal, NotFound
from services.gateway.core.fields import ChatBody, CommonBody, CompletionBody
from services.gateway.exchange import Exchange
from services.gateway.gateway import Gateway
from services.gateway.where import add_where

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def create_app(gateway: Gateway) -> FastAPI:
    app = FastAPI(
        title="Moonpool",
        version=gateway.context.version,
        description="OpenAI-compatible REST API of a Moonpool mesh.",
        redoc_url=None,
        redirect_slashes=False,
    )
    _answering(app, gateway)
    _models(app, gateway)
    add_where(app, gateway)
    _probes(app, gateway)
    _errors(app)
    return app


def _answering(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/chat/completions", openapi_extra=_body_schema(ChatBody))
    async def chat_completions() -> Response:
        """An answer to a chat, whole or as server-sent events."""
        return Exchange(gateway, ChatBody)

    @app.post("/v1/completions", openapi_extra=_body_schema(CompletionBody))
    async def completions() -> Response:
        """A continuation of a prompt, whole or as server-sent events."""
        return Exchange(gateway, CompletionBody)


def _models(app: FastAPI, gateway: Gateway) -> None:
    def describe(name: str, since_unix_s: float) -> dict[str, Any]:
        record = fleet.record_of(gateway.members.all(), name)
        return {
            "id": name,
            "object": "model",
            "created": int(since_unix_s),
            "owned_by": "moonpool",
            "max_model_len": record.context_tokens if record is not None else None,
        }

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """The models that can be asked for now."""
        gateway.tenants.identify(request.headers.get("authorization"))
        served = [describe(name, since) for name, since in gateway.models().items()]
        return {"object": "list", "data": served}

    @app.get("/v1/models/{id:path}")
    async def model(id: str, request: Request) -> dict[str, Any]:
        """One model."""
        gateway.tenants.identify(request.headers.get("authorization"))
        since = gateway.models().get(id)
        if since is None:
            raise NotFound(
                f"the model {id[:200]!r} does not exist here", code="model_not_found", param="model"
            )
        return describe(id, since)


def _probes(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/live")
    async def live() -> dict[str, str]:
        """The process answers."""
        return {"status": "live"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """200 when requests can be answered; 503 with what is missing."""
        lacks = gateway.missing()
        status = "ready" if not lacks else "not ready"
        return JSONResponse({"status": status, "missing": lacks}, status_code=503 if lacks else 200)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Details for people: what is there, and how it is doing."""
        lacks = gateway.missing()
        context = gateway.context
        return {
            "status": "ok" if not lacks else "degraded",
            "missing": lacks,
            "id": context.id,
            "version": context.version,
            "uptime_s": round(context.clock.now() - context.started_s, 3),
            "model": gateway.model or None,
            "members": fleet.counts(gateway.members.all()),
            "stats": gateway.stats() | {"bus": context.bus.stats()},
        }

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """Prometheus text."""
        observe_process(gateway.context)
        return PlainTextResponse(gateway.context.metrics.render(), media_type=PROMETHEUS)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers())

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        told = _framework_error(request, error)
        headers = dict(error.headers or {})
        return JSONResponse(told.body(), status_code=told.status, headers=headers)

    @app.exception_handler(Exception)
    async def surprise(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(Internal().body(), status_code=500)


def _framework_error(request: Request, error: HTTPException) -> ApiError:
    what = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 404:
        return NotFound(f"there is no route {what}", code="route_not_found")
    if error.status_code == 405:
        return BadInput(
            f"{what} is not allowed: the route takes another method",
            code="method_not_allowed",
            status=405,
        )
    return BadInput(f"{what}: {error.detail}", code=None, status=error.status_code)


def _body_schema(kind: type[CommonBody]) -> dict[str, Any]:
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    schema = _inlined(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Definitions put where they are referred to: the schema stands alone."""
    if isinstance(node, list):
        return [_inlined(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}
