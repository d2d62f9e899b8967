"""Which token events count: those of the current attempt, each exactly once, in order.

Events may come twice, late, from an earlier attempt, or ahead of one that is still under way
(prefill and decode speak over different connections). What is ahead waits in a bounded place.
"""

from moonpool.messages.tokens import TokenEvent

AHEAD_MAX = 256  # events that wait for an earlier one; more means that it was lost


class Intake:
    def __init__(self) -> None:
        self._ahead: dict[int, TokenEvent] = {}
        self.void = 0  # events that did not count

    @property
    def has_gap(self) -> bool:
        """Something is missing before an event that is here."""
        return bool(self._ahead)

    def reset(self) -> None:
        """A new attempt begins."""
        self._ahead.clear()

    def take(self, event: TokenEvent, expected: int) -> list[TokenEvent]:
        """Events that count now, in order, when `expected` is the index of the next token."""
        if event.index != expected:
            ahead = event.index > expected and len(self._ahead) < AHEAD_MAX
            if ahead and event.index not in self._ahead:
                self._ahead[event.index] = event
            else:
                self.void += 1
            return []
        ready = [event]
        expected += len(event.tokens)
        while event.tokens and (following := self._ahead.pop(expected, None)) is not None:
            ready.append(following)
            expected += len(following.tokens)
            event = following
        return ready
