"""A decode instance: a continuous batch in which all answers grow by one token per step.

Between two changes of the batch every step is a little longer than the last (contexts grow), so
the time of any number of steps is a quadratic, and nothing happens step by step.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from services.conductor.simulate.serve.agenda import Agenda
from services.conductor.simulate.serve.machine import Machine

_SLOWEST_SHARE = 0.1  # time between tokens of a request: mean of its slowest tenth
_LOG_MAX = 4096


@dataclass(slots=True, eq=False)
class Answer:
    """One answer in the batch."""

    request: int
    context_tokens: int  # when it joined
    tokens: int  # still to come, >= 0
    blocks: int
    joined_step: float = 0.0  # on the instance's own count
    joined_s: float = 0.0


class DecodeModel:
    """One instance. `ended(answer, tbt_s)` hears when an answer is complete."""

    def __init__(
        self,
        id: str,
        machine: Machine,
        agenda: Agenda,
        ended: Callable[[Answer, float], None],
        changed: Callable[[str], None],
    ) -> None:
        self.id = id
        self._machine = machine
        self._agenda = agenda
        self._ended = ended
        self._changed = changed
        self.slots = machine.decode.slots
        self.blocks_total = machine.decode.kv_tokens // machine.block_tokens
        self.reserved: dict[int, int] = {}  # request -> blocks
        self._running: list[tuple[float, int, Answer]] = []  # by the step at which they end
        self._order = 0
        self._context = 0.0  # of all running answers, at `_at_s`
        self._steps = 0.0  # counted since the start
        self._at_s = 0.0
        self._blocks_used = 0
        self._log_steps: list[float] = [0.0]  # when the batch changed: steps and seconds
        self._log_s: list[float] = [0.0]
        self._version = 0
        self.busy_s = 0.0
        self.tokens_out = 0.0

    @property
    def batch(self) -> int:
        return len(self._running)

    @property
    def blocks_free(self) -> int:
        return self.blocks_total - self._blocks_used

    def context_tokens(self) -> float:
        """Of all running answers, now."""
        self._advance()
        return self._context

    def reserve(self, request: int, blocks: int) -> bool:
        """Holds a place, or says no."""
        if self.batch + len(self.reserved) >= self.slots or blocks > self.blocks_free:
            return False
        self.reserved[request] = blocks
        self._blocks_used += blocks
        return True

    def release(self, request: int) -> None:
        """The place is not needed after all."""
        self._blocks_used -= self.reserved.pop(request)

    def join(self, request: int, context_tokens: int, tokens: int) -> None:
        """A reserved answer enters the batch with `tokens` to come."""
        self._advance()
        answer = Answer(request, context_tokens, tokens, self.reserved.pop(request))
        answer.joined_step, answer.joined_s = self._steps, self._agenda.now_s
        self._order += 1
        heapq.heappush(self._running, (self._steps + tokens, self._order, answer))
        self._context += context_tokens
        self._note()

    def step_s(self, more: int = 0, more_context: int = 0) -> float:
        """Seconds of a step now, with so much more in the batch."""
        self._advance()
        return self._machine.step_s(self.batch + more, self._context + more_context)

    # -- inside

    def _advance(self) -> None:
        """Counts the steps since the last look."""
        now_s = self._agenda.now_s
        elapsed_s, self._at_s = now_s - self._at_s, now_s
        if elapsed_s <= 0 or not self._running:
            return
        steps = min(self._steps_in(elapsed_s), self._running[0][0] - self._steps)
        self._steps += steps
        self._context += steps * self.batch
        self.tokens_out += steps * self.batch
        self.busy_s += elapsed_s

    def _steps_in(self, seconds: float) -> float:
        first = self._machine.step_s(self.batch, self._context)
        growth = self._machine.decode.context_s * self.batch
        if growth * seconds < 1e-9 * first:
            return seconds / first
        return (math.sqrt(first * first + 2.0 * growth * seconds) - first) / growth

    def _seconds_for(self, steps: float) -> float:
        first = self._machine.step_s(self.batch, self._context)
        return steps * first + 0.5 * self._machine.decode.context_s * self.batch * steps * steps

    def _note(self) -> None:
        """The batch changed: remember when, and see who ends next."""
        self._log_steps.append(self._steps)
        self._log_s.append(self._agenda.now_s)
        if len(self._log_s) > _LOG_MAX:
            self._trim()
        self._version += 1
        if self._running:
            left = max(0.0, self._running[0][0] - self._steps)
            self._agenda.after(self._seconds_for(left), self._next_end, self._version)
        self._changed(self.id)

    def _trim(self) -> None:
        """Forgets changes from before the oldest answer that still runs."""
        oldest = min((a.joined_step for _, _, a in self._running), default=self._steps)
        keep = max(0, bisect_left(self._log_steps, oldest) - 1)
        del self._log_steps[:keep], self._log_s[:keep]

    def _next_end(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        self._steps = max(self._steps, self._running[0][0])
        ended: list[Answer] = []
        while self._running and self._running[0][0] <= self._steps + 1e-6:
            answer = heapq.heappop(self._running)[2]
            self._context -= answer.context_tokens + answer.tokens
            self._blocks_used -= answer.blocks
            ended.append(answer)
        if not self._running:
            self._context = 0.0
        self._note()
        for answer in ended:
            self._ended(answer, self._tbt_s(answer))

    def _tbt_s(self, answer: Answer) -> float:
        """Mean of the slowest tenth of the times between its tokens."""
        if not answer.tokens:
            return 0.0
        steps, seconds = self._log_steps, self._log_s
        spans: list[tuple[float, float]] = []  # (seconds per token, tokens)
        at = len(steps) - 1
        while at > 0 and steps[at] > answer.joined_step:
            count = steps[at] - max(steps[at - 1], answer.joined_step)
            whole = steps[at] - steps[at - 1]
            if count > 0 and whole > 0:
                spans.append(((seconds[at] - seconds[at - 1]) / whole, count))
            at -= 1
        spans.sort(reverse=True)
        left = wanted = max(1.0, _SLOWEST_SHARE * answer.tokens)
        total = 0.0
        for pace_s, count in spans:
            took = min(left, count)
            total += took * pace_s
            left -= took
            if left <= 0:
                break
        return total / (wanted - left) if wanted > left else 0.0

    def check(self) -> None:
        held = sum(self.reserved.values()) + sum(a.blocks for _, _, a in self._running)
        assert held == self._blocks_used, "every block used has its user"
        assert self.batch + len(self.reserved) <= self.slots, "no more answers than slots"
        assert self._context >= -1e-6 * max(1.0, self._steps), "contexts are not negative"
