"""`moonpool advise`: which side is short, and by how many instances."""

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

from services.cli.asking import add_nats_options, ask, nats_of
from services.cli.options import add_json_option, add_verb

if TYPE_CHECKING:
    from moonpool.messages.advice import AdviceReply
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool advise
  moonpool advise --json | jq '.models[].sides[] | select(.short > 0)'
  moonpool advise --role colocated-1=decode      new work of that kind only; =both undoes it

from what was asked in the last minutes, refused requests included.
exit code 0: nothing is short
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "advise", "tell which side is short of instances", EXAMPLES, run)
    parser.add_argument("--role", metavar="ID=DUTY", help="tell a colocated instance its duty")
    add_nats_options(parser)
    add_json_option(parser)


def run(given: argparse.Namespace) -> int:
    url, prefix = nats_of(given)
    if given.role:
        return asyncio.run(_tell(url, prefix, given.role))
    reply = asyncio.run(_advice(url, prefix))
    if given.json:
        import msgspec

        print(json.dumps(msgspec.to_builtins(reply)))
    else:
        print(table(reply))
    return int(any(side.short > 0 for model in reply.models for side in model.sides))


async def _advice(url: str, prefix: str) -> "AdviceReply":
    from moonpool.messages.advice import AdviceReply, AdviceRequest

    return await ask(url, prefix, lambda subjects: subjects.advise, AdviceRequest(), AdviceReply)


async def _tell(url: str, prefix: str, words: str) -> int:
    from moonpool.messages import CallerError, error_from
    from moonpool.messages.advice import RoleReply, RoleRequest

    id, found, duty = words.partition("=")
    if not found:
        raise CallerError(f"{words!r} is not ID=DUTY")
    request = RoleRequest(duty)
    reply = await ask(url, prefix, lambda s: s.role(id), request, RoleReply, f"instance {id}")
    if reply.refusal:
        raise error_from(reply.refusal)
    print(f"{id}: {reply.duty}")
    return 0


def table(reply: "AdviceReply") -> str:
    """A line per model and side, and the advice."""
    if not reply.models:
        return "no model is served, and none was asked for"
    lines = [f"{'MODEL':28} {'SIDE':10} {'HAVE':>5} {'NEEDED':>7} {'REFUSED/s':>10}"]
    for model in reply.models:
        for side in model.sides:
            lines.append(
                f"{model.model[:28]:28} {side.side:10} {side.have:>5} {side.needed:>7.2f} "
                f"{side.refused_per_s:>10.2f}"
            )
        lines.append(f"{model.model}: {model.says}")
    lines.append(f"(watched for {reply.watched_s:.0f} s by {reply.conductor})")
    return "\n".join(lines)
