"""`moonpool where`: who holds how much of a prompt, in which tier."""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.asking import add_nats_options, ask, nats_of
from services.cli.options import add_json_option, add_verb, target

if TYPE_CHECKING:
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool where --prompt notes.txt             a text, as the gateway reads it for your API key
  moonpool where --messages chat.json           a list of messages, by the chat template
  moonpool where 9f2c...                        block keys, 32 hex digits each, in order
  moonpool where --tokens ids.json --foreign llama-8b --block-tokens 16
                                                token ids, in engines that a bridge speaks for

exit code 0: somebody holds a part of it; 1: nobody
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "where", "show who holds a prompt's KV blocks", EXAMPLES, run)
    parser.add_argument("key", nargs="*", help="block keys in hex")
    parser.add_argument("--prompt", type=Path, metavar="FILE", help="text of a prompt")
    parser.add_argument("--messages", type=Path, metavar="FILE", help="JSON list of chat messages")
    parser.add_argument("--tokens", type=Path, metavar="FILE", help="JSON list of token ids")
    parser.add_argument("--model", help="which one (default: the first that the mesh serves)")
    parser.add_argument("--foreign", metavar="MODEL", help="model of bridged engines")
    parser.add_argument("--block-tokens", type=int, default=16, help="of bridged engines")
    add_nats_options(parser)
    parser.add_argument("--url", help="a gateway, like http://HOST:8080")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY", ""),
        help="of the gateway (default: $OPENAI_API_KEY)",
    )
    add_json_option(parser)


def run(given: argparse.Namespace) -> int:
    from moonpool.messages import CallerError

    ways = [bool(given.key), *(f is not None for f in (given.prompt, given.messages, given.tokens))]
    if sum(ways) != 1:
        raise CallerError("name either keys, or one of --prompt, --messages and --tokens")
    by_gateway = given.prompt or given.messages
    found = _by_gateway(given) if by_gateway else asyncio.run(_by_keys(given))
    if given.json:
        print(json.dumps(found))
    else:
        print(table(found))
    return 0 if found["holders"] else 1


def _by_gateway(given: argparse.Namespace) -> dict[str, Any]:
    from services.cli.http import get_json, post_json

    gateway = target(argparse.Namespace(**vars(given) | {"key": given.api_key}))
    model = given.model or get_json(gateway, "/v1/models")["data"][0]["id"]
    if given.prompt:
        body = {"model": model, "prompt": _read(given.prompt)}
    else:
        body = {"model": model, "messages": _read_json(given.messages)}
    return post_json(gateway, "/v1/where", body)


async def _by_keys(given: argparse.Namespace) -> dict[str, Any]:
    import msgspec

    from moonpool.messages.where import WhereReply, WhereRequest

    url, prefix = nats_of(given)
    keys = _keys_of_tokens(given) if given.tokens else parse_keys(given.key)
    request = WhereRequest(keys)
    reply = await ask(url, prefix, lambda subjects: subjects.where, request, WhereReply)
    return {"object": "where", **msgspec.to_builtins(reply)}


def _keys_of_tokens(given: argparse.Namespace) -> bytes:
    from moonpool.kv import block_keys, foreign_root, pack_keys
    from moonpool.messages import CallerError

    if not given.foreign:
        raise CallerError("--tokens asks bridged engines: name their model with --foreign")
    tokens = _read_json(given.tokens)
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise CallerError(f"{given.tokens}: not a JSON list of token ids")
    root = foreign_root(given.foreign, given.block_tokens)
    keys = block_keys(root, tokens, given.block_tokens)
    if not keys:
        raise CallerError(f"{len(tokens)} tokens fill no block of {given.block_tokens}")
    return pack_keys(keys)


def parse_keys(words: list[str]) -> bytes:
    """Raises CallerError, which names the word."""
    from moonpool.kv import KEY_BYTES
    from moonpool.messages import CallerError

    packed = b""
    for word in words:
        try:
            key = bytes.fromhex(word)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise CallerError(f"{word!r} is no block key: {2 * KEY_BYTES} hex digits")
        packed += key
    return packed


def table(found: dict[str, Any]) -> str:
    """A line per holder and tier."""
    blocks = found["blocks"]
    if not found["holders"]:
        return f"nobody holds any of {blocks} blocks"
    lines = [f"{'OWNER':16} {'ROLE':10} {'HOST':12} {'TIER':5} {'PREFIX':>10} {'BLOCKS':>8}"]
    lines += [
        f"{each['owner']:16} {each['role']:10} {each['host'][:12]:12} {each['tier']:5} "
        f"{each['prefix_blocks']:>6}/{blocks:<4}{each['blocks']:>8}"
        for each in found["holders"]
    ]
    return "\n".join(lines)


def _read(path: Path) -> str:
    from moonpool.messages import CallerError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise CallerError(f"{path}: {why}") from error


def _read_json(path: Path) -> Any:
    from moonpool.messages import CallerError

    try:
        return json.loads(_read(path))
    except ValueError as error:
        raise CallerError(f"{path}: not JSON: {error}") from error
