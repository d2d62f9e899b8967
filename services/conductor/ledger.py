"""The ledger: requests this conductor accepted and that have not ended, as far as it knows.

It says what load reports cannot: who will join a decode's batch when, and who will have left it by
then. Reports of ended answers strike entries out; whatever is never heard of fades by its length.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from moonpool.messages.ids import RequestId
from moonpool.messages.load import request_tag
from services.conductor.lengths import AnswerLengths

_ENTRIES_MAX = 65536
_FORGET_AFTER_S = 1800.0  # beyond its predicted first token
_GONE = 1e-3  # entries less likely than this to be still there are not counted


@dataclass(slots=True)
class Entry:
    """One request on its way to or in a decode's batch."""

    tenant: str
    decode: str
    first_s: float  # when its prefill ends, predicted
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Expected:
    """A decode's batch at some time to come, in the mean."""

    sequences: float = 0.0
    context_tokens: float = 0.0
    variance: float = 0.0  # of the number of sequences
    now: float = 0.0  # sequences expected in the batch already
    staying: float = 0.0  # of those, still there then


class Ledger:
    """Entries by tag, and by decode."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._by_decode: dict[str, dict[int, Entry]] = {}

    def add(self, request: RequestId, entry: Entry) -> None:
        """A plan was made. A second one for the same request replaces the first."""
        tag = request_tag(request)
        self.strike(tag)
        if len(self._entries) >= _ENTRIES_MAX:
            self.strike(next(iter(self._entries)))
        self._entries[tag] = entry
        self._by_decode.setdefault(entry.decode, {})[tag] = entry

    def strike(self, tag: int) -> Entry | None:
        """The request is over, or runs elsewhere. Returns what was known of it."""
        entry = self._entries.pop(tag, None)
        if entry:
            held = self._by_decode[entry.decode]
            del held[tag]
            if not held:
                del self._by_decode[entry.decode]
        return entry

    def delayed(self, tags: frozenset[int], now_s: float) -> None:
        """A prefill reports that these still wait or are being computed."""
        for tag in tags:
            entry = self._entries.get(tag)
            if entry and entry.first_s < now_s:
                entry.first_s = now_s

    def joined(self, tags: Iterable[int], now_s: float) -> None:
        """A prefill is through with these: earlier than predicted, maybe."""
        for tag in tags:
            entry = self._entries.get(tag)
            if entry:
                entry.first_s = min(entry.first_s, now_s)

    def joining_after(self, decode: str, at_s: float) -> list[float]:
        """When those are to join its batch that do so later, in order."""
        held = self._by_decode.get(decode, {}).values()
        return sorted(entry.first_s for entry in held if entry.first_s > at_s)

    def ages(self, now_s: float, token_s_of: Callable[[str], float]) -> Iterator[tuple[str, float]]:
        """(tenant, tokens so far) of answers that run. `token_s_of` a decode: seconds per token;
        0: not known. One that must have ended unheard is left out."""
        for decode, held in self._by_decode.items():
            token_s = token_s_of(decode)
            if token_s <= 0:
                continue
            for entry in held.values():
                tokens = (now_s - entry.first_s) / token_s
                if 0 < tokens < entry.max_tokens:
                    yield entry.tenant, tokens

    def forget(self, decode: str) -> None:
        """The decode left."""
        for tag in list(self._by_decode.get(decode, ())):
            self.strike(tag)

    def expire(self, now_s: float) -> None:
        """Drops what nobody ever reported on."""
        old = [t for t, e in self._entries.items() if now_s - e.first_s > _FORGET_AFTER_S]
        for tag in old:
            self.strike(tag)

    def of(self, decode: str) -> Iterator[Entry]:
        return iter(self._by_decode.get(decode, {}).values())

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def expected(
        self, decode: str, at_s: float, now_s: float, token_s: float, lengths: AnswerLengths
    ) -> Expected:
        """The batch of `decode` at `at_s` when its tokens take `token_s` each."""
        sequences = context = variance = now = staying = 0.0
        longer = lengths.longer_than
        for entry in self._by_decode.get(decode, {}).values():
            if entry.first_s > at_s:
                continue
            done = max(0.0, (now_s - entry.first_s) / token_s)
            then = (at_s - entry.first_s) / token_s
            if then >= entry.max_tokens:
                continue
            there = longer(entry.tenant, then)
            if done:
                now += 1.0
                there /= longer(entry.tenant, done)
            if there > _GONE:
                there = min(1.0, there)
                sequences += there
                context += there * (entry.prompt_tokens + then)
                variance += there * (1.0 - there)
                staying += there if done else 0.0
        return Expected(sequences, context, variance, now, staying)

    def stats(self) -> dict[str, int]:
        return {"ledger_entries": len(self._entries)}

    def check(self) -> None:
        """Every entry is filed under its decode."""
        filed = sum(len(held) for held in self._by_decode.values())
        assert filed == len(self._entries) <= _ENTRIES_MAX
        assert all(self._by_decode.values()), "no empty decodes"
