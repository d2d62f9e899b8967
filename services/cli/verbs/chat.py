"""`moonpool chat`: a conversation in the terminal, streamed."""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.cli.options import Target, add_url_options, add_verb, target

if TYPE_CHECKING:
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool chat
  moonpool chat --system 'You answer in one sentence.' --temperature 0
  echo 'What is a KV cache?' | moonpool chat --json

type /reset to begin again, /quit or Ctrl-D to leave; Ctrl-C stops an answer
"""
COMMANDS = "/reset begins again, /quit leaves; Ctrl-C stops an answer"


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "chat", "chat in the terminal", EXAMPLES, run)
    add_url_options(parser)
    parser.add_argument("--model", help="which one (default: the first that the mesh serves)")
    parser.add_argument("--system", help="what the model is told first")
    parser.add_argument("--temperature", type=float, default=0.3, help="0: greedy (default 0.3)")
    parser.add_argument("--max-tokens", type=int, default=512, help="per answer (default 512)")
    parser.add_argument("--seed", type=int, help="same seed, same text")
    parser.add_argument("--json", action="store_true", help="one JSON object per answer")


@dataclass(slots=True)
class Answer:
    """One answer of the model, complete or stopped."""

    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0
    stopped: bool = False

    @property
    def tokens_per_s(self) -> float:
        """While it streamed, so without the wait for the first token."""
        seconds = self.total_s - self.ttft_s
        return (self.completion_tokens - 1) / seconds if seconds > 0 else 0.0

    def footer(self) -> str:
        if self.stopped:
            return "[stopped]"
        return (
            f"[{self.completion_tokens} tokens, {self.tokens_per_s:.1f}/s, "
            f"first after {self.ttft_s:.2f} s; {self.cached_tokens} of {self.prompt_tokens} "
            "prompt tokens cached]"
        )

    def as_json(self) -> str:
        return json.dumps(
            {
                "text": self.text,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "cached_tokens": self.cached_tokens,
                "ttft_s": round(self.ttft_s, 4),
                "tokens_per_s": round(self.tokens_per_s, 2),
            }
        )


@dataclass(slots=True)
class Conversation:
    """History, and the parameters that every turn is asked with."""

    target: Target
    parameters: dict[str, Any]
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str, *, show: bool) -> Answer:
        """One turn. An answer that was stopped stays in the history as far as it came; a turn
        that failed does not. Raises GatewayRefused or GatewayAway."""
        from services.cli.http import stream_chat

        self.messages.append({"role": "user", "content": text})
        answer, started = Answer(), time.monotonic()
        body = self.parameters | {
            "messages": self.messages,
            "stream_options": {"include_usage": True},
        }
        done = False
        try:
            for chunk in stream_chat(self.target, body):
                self._take(chunk, answer, started, show)
            done = True
        except KeyboardInterrupt:
            answer.stopped = done = True
        finally:
            if not done:
                self.messages.pop()
        answer.total_s = time.monotonic() - started
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer

    @staticmethod
    def _take(chunk: dict[str, Any], answer: Answer, started: float, show: bool) -> None:
        for choice in chunk.get("choices", []):
            piece = choice.get("delta", {}).get("content") or ""
            if piece and not answer.text:
                answer.ttft_s = time.monotonic() - started
            answer.text += piece
            if show:
                print(piece, end="", flush=True)
        usage = chunk.get("usage")
        if usage:
            answer.prompt_tokens = usage["prompt_tokens"]
            answer.completion_tokens = usage["completion_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            answer.cached_tokens = details.get("cached_tokens", 0)


def run(given: argparse.Namespace) -> int:
    from moonpool.messages.errors import MoonpoolError

    talk = _conversation(given)
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401  # editing and history at the prompt

        print(f"{talk.parameters['model']} at {talk.target.url}; {COMMANDS}")
    failed = False
    while True:
        text = _read(interactive)
        if text is None or text == "/quit":
            return 1 if failed and not interactive else 0
        if text == "/reset":
            talk.reset()
        elif text.startswith("/"):
            print(COMMANDS, file=sys.stderr)
        elif text:
            try:
                answer = talk.ask(text, show=not given.json)
            except MoonpoolError as error:
                print(f"moonpool chat: {error.message}", file=sys.stderr)
                failed = True
                continue
            print(answer.as_json() if given.json else f"\n{_dim(answer.footer())}")


def _conversation(given: argparse.Namespace) -> Conversation:
    from services.cli.http import get_json

    where = target(given)
    model = given.model or get_json(where, "/v1/models")["data"][0]["id"]
    parameters = {
        "model": model,
        "temperature": given.temperature,
        "max_tokens": given.max_tokens,
    }
    if given.seed is not None:
        parameters["seed"] = given.seed
    talk = Conversation(where, parameters, given.system)
    talk.reset()
    return talk


def _read(interactive: bool) -> str | None:
    """The next line; None at the end of input."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        return None


def _dim(text: str) -> str:
    return f"\033[2m{text}\033[0m" if sys.stdout.isatty() else text
