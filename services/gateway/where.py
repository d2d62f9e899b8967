"""`POST /v1/where`: who holds how much of a prompt, for routers in front of the mesh.

Keys are made as for a request of the caller's own, so that nobody can look for another tenant's
blocks. Nothing is planned and nothing computed.
"""

from typing import Any

from fastapi import FastAPI, Request

from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import Blame, ErrorInfo, MoonpoolError
from moonpool.messages.where import WhereReply, WhereRequest
from services.gateway.body import read_all
from services.gateway.core.errors import from_info
from services.gateway.core.fields import ChatBody, CompletionBody, read_body
from services.gateway.core.jsonbody import parse_object
from services.gateway.gateway import Gateway

TIMEOUT_S = 5.0


def add_where(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/where")
    async def where(request: Request) -> dict[str, Any]:
        """Holders of a prompt's blocks: `model`, and `prompt` or `messages`, as in a request."""
        tenant = gateway.tenants.identify(request.headers.get("authorization"))
        given = parse_object(await read_all(request, gateway.context.settings.body_max_bytes))
        body = read_body(ChatBody if "messages" in given else CompletionBody, given)
        prompt = await gateway.read_prompt(body, tenant)
        keys = b"".join(prompt.keys)
        reply = await _ask(gateway, keys) if keys else WhereReply("", 0)
        return {
            "object": "where",
            "model": body.model,
            "prompt_tokens": len(prompt.tokens),
            "block_tokens": prompt.block_tokens,
            "blocks": reply.blocks,
            "holders": [
                {
                    "owner": each.owner,
                    "role": each.role,
                    "host": each.host,
                    "tier": each.tier,
                    "prefix_blocks": each.prefix_blocks,
                    "blocks": each.blocks,
                }
                for each in reply.holders
            ],
        }


async def _ask(gateway: Gateway, keys: bytes) -> WhereReply:
    """Raises ApiError."""
    context = gateway.context
    try:
        subject = context.subjects.where
        answer = await context.bus.request(subject, encode(WhereRequest(keys)), TIMEOUT_S)
        return decode(answer, WhereReply)
    except MoonpoolError as error:
        if error.blame is Blame.CALLER:
            raise from_info(error.info()) from error
        told = ErrorInfo("no_conductor", Blame.PEER, f"no conductor answers: {error.message}", 1.0)
        raise from_info(told) from error
