"""Chats that go on while something happens to the mesh."""

import itertools
import threading
from types import TracebackType
from typing import Self

import openai

from tests.compose.project import MODEL, Project

STORY = "Once upon a time there was a pool on the moon, and in it lay all that was ever said. " * 6


class Talk:
    """`with Talk(project) as talk:` keeps `speakers` chats under way; leaving lets them finish.
    Every answer must come whole; what went wrong is in `errors`."""

    def __init__(self, project: Project, speakers: int = 2) -> None:
        self._client = project.sdk()
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._speak, name=f"speaker-{n}") for n in range(speakers)
        ]
        self.answers = 0
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _speak(self) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            try:
                self._chat(number)
            except openai.OpenAIError as error:
                self.errors.append(f"chat {number}: {error!r}")

    def _chat(self, number: int) -> None:
        finish, pieces = None, 0
        for chunk in self._client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Tale {number}. {STORY} Go on."}],
            max_tokens=16,
            temperature=0,
            stream=True,
        ):
            for choice in chunk.choices:
                pieces += bool(choice.delta.content)
                finish = choice.finish_reason or finish
        if finish in ("stop", "length") and pieces:
            self.answers += 1
        else:
            self.errors.append(f"chat {number}: finish {finish}, {pieces} pieces")
