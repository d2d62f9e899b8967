"""`moonpool verify`: is the mesh's output what transformers computes?"""

import argparse
import asyncio
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.options import Target, add_json_option, add_verb

if TYPE_CHECKING:
    from services.cli.options import Verbs
    from services.cli.verify import Output, Prompt
    from services.cli.verify.reference import Reference

EXAMPLES = """\
  moonpool verify                                   the default model, on a mesh of its own
  moonpool verify --model /models/mine --dtype bfloat16
  moonpool verify --model /models/mine --prompts my-prompts.txt --json
  moonpool verify --model /models/mine --url http://HOST:8080    a mesh that runs already

Each prompt is asked three times: cold, cached, and together with all others. Exit code 0: every
output is equal, or differs at a proven near tie of half precision. --prompts: one a line, plain
text or JSON with `prompt` or `messages`.
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(
        verbs, "verify", "compare a model's output on the mesh with transformers'", EXAMPLES, run
    )
    add_json_option(parser)
    parser.add_argument("--model", help="Hugging Face id or local folder")
    parser.add_argument(
        "--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="float32"
    )
    parser.add_argument("--prompts", type=Path, help="a file of your own")
    parser.add_argument("--max-tokens", type=int, default=32, help="per prompt (default 32)")
    parser.add_argument("--url", help="a gateway that runs already; --model and --dtype must match")
    parser.add_argument("--key", default="", help="API key of that gateway")
    parser.add_argument("--colocated", action="store_true", help="on a colocated instance")


def run(given: argparse.Namespace) -> int:
    from moonpool.engine import resolve_model
    from services.cli.mesh import DEFAULT_MODEL
    from services.cli.verify import BUILTIN, Report, compare, read_prompts, render
    from services.cli.verify.reference import Reference

    prompts = read_prompts(given.prompts) if given.prompts else list(BUILTIN)
    model = given.model or DEFAULT_MODEL
    files = resolve_model(model, progress=_say)
    reference = Reference(files.path, given.dtype)
    answers = asyncio.run(_ask_all(given, model, reference, prompts))
    _say("the same with transformers")
    verdicts = []
    for at, prompt in enumerate(prompts):
        expected = reference.generate(reference.prompt_tokens(prompt.messages), given.max_tokens)
        verdicts += [
            compare(prompt.name, name, expected, outputs[at], reference.dtype)
            for name, outputs in answers.items()
        ]
    report = Report(files.name, reference.dtype, verdicts)
    print(report.as_json() if given.json else render(report))
    return 0 if report.equal else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def _ask_all(
    given: argparse.Namespace, model: str, reference: "Reference", prompts: "list[Prompt]"
) -> "dict[str, list[Output]]":
    """Outputs per run, on the gateway that was named or on a mesh that lives for this."""
    from services.cli.mesh import LocalMesh

    tokens = [reference.prompt_tokens(p.messages) for p in prompts]
    if given.url:
        headers = {"authorization": f"Bearer {given.key}"} if given.key else {}
        where = Target(given.url.rstrip("/").removesuffix("/v1"), headers)
        return await asyncio.to_thread(_runs, where, tokens, given.max_tokens)
    split = 0 if given.colocated else 1
    async with LocalMesh(
        prefill=split,
        decode=split,
        colocated=1 - split,
        model=model,
        dtype=given.dtype,
        progress=_say,
    ) as mesh:
        return await asyncio.to_thread(_runs, Target(mesh.url, {}), tokens, given.max_tokens)


def _runs(where: Target, tokens: list[list[int]], max_tokens: int) -> "dict[str, list[Output]]":
    from services.cli.http import get_json
    from services.cli.verify.asking import ask, ask_together

    model = get_json(where, "/v1/models")["data"][0]["id"]
    salt = secrets.token_hex(8)
    runs = {}
    for name in ("cold", "cached"):
        _say(f"asking {len(tokens)} prompts, {name}")
        runs[name] = [ask(where, model, each, max_tokens, salt) for each in tokens]
    _say(f"asking {len(tokens)} prompts, together")
    runs["together"] = ask_together(where, model, tokens, max_tokens, secrets.token_hex(8))
    return runs
