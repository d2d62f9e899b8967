"""The answer as text: tokens in, pieces of text out, cut at a stop string."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moonpool.messages.tokens import TokenLogprobs
from services.gateway.core.detokenize import Detokenizer
from services.gateway.core.stops import StopMatcher


@dataclass(slots=True)
class Piece:
    """What may be shown now, with the tokens it came from when they or their logprobs are asked."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one per token, or none at all

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens)


class Answer:
    """Text of one answer. Stop strings count only from the token after `min_tokens` on."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        min_tokens: int,
        with_tokens: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._with_tokens = with_tokens
        self.tokens = 0  # taken so far; those behind a stop string are not
        self._waiting = Piece()  # tokens whose text is held back

    @property
    def stopped(self) -> bool:
        """A stop string ended the answer: nothing more is taken."""
        return self._matcher.matched is not None

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._matcher.matched

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Piece:
        """Takes tokens up to a stop string; gives what may be shown now."""
        shown: list[str] = []
        for at, token in enumerate(tokens):
            if self.stopped:
                break
            self.tokens += 1
            text = self._detokenizer.push(token)
            if self.tokens > self._min_tokens:
                text = self._matcher.push(text)
            shown.append(text)
            if logprobs or self._with_tokens:
                self._waiting.tokens.append(token)
            if logprobs:
                self._waiting.logprobs.append(logprobs[at])
        text = "".join(shown)
        return self._release(text) if text or self.stopped else Piece()

    def finish(self) -> Piece:
        """The rest, when no more tokens come."""
        text = ""
        if not self.stopped:
            text = self._matcher.push(self._detokenizer.flush())
        if not self.stopped:
            text += self._matcher.flush()
        return self._release(text)

    def _release(self, text: str) -> Piece:
        piece, self._waiting = self._waiting, Piece()
        piece.text = text
        return piece
