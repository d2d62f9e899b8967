"""Whose prompt is next: priority classes, then fair shares of tenants, then who is due first.

A prompt rises by one class for every `AGE_S` that it waits, so nobody starves. Within a class,
tenants share the instance by weight: each has a virtual time, its tokens computed over its weight,
and the tenant with the least goes first. A tenant that was idle begins where the others are: it
can neither save up nor be made to pay. Of one tenant's prompts, who is due first goes first; a
tenant alone has exactly that order.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from moonpool.messages.ids import TenantId
from moonpool.messages.prefill import AGE_S

_TENANTS_MAX = 4096  # of whom more is remembered than that they are level with the others


class Prompt(Protocol):
    """What the queue looks at; `tag` is its own."""

    tenant: TenantId
    level: int  # 0: the highest class
    weight: float  # > 0
    queued_at_s: float
    prompt_tokens: int
    computed: int
    tag: float  # virtual time at which it began; below 0: it has not

    @property
    def due_s(self) -> float: ...


P = TypeVar("P", bound=Prompt)


class FairQueue:
    """Orders prompts; they stay with whoever holds them."""

    def __init__(self) -> None:
        self._served: dict[TenantId, float] = {}  # virtual time by tenant, those ahead of `_now`
        self._now = 0.0  # the highest at which a prompt began

    def in_turn(self, prompts: Iterable[P], now_s: float) -> list[P]:
        """All of them, the next first."""
        shares: dict[tuple[int, TenantId], list[P]] = {}
        for prompt in prompts:
            shares.setdefault((_class_of(prompt, now_s), prompt.tenant), []).append(prompt)
        turns: list[tuple[int, float, float, int, P]] = []
        ahead: dict[TenantId, float] = {}
        for (level, tenant), mine in sorted(shares.items(), key=lambda item: item[0]):
            mine.sort(key=lambda prompt: prompt.due_s)
            virtual = ahead.get(tenant, self._virtual(tenant))
            tags = [prompt.tag for prompt in mine if prompt.tag >= 0.0]
            for prompt in mine:
                if prompt.tag < 0.0:
                    tags.append(virtual)
                    virtual += _cost(prompt)
            ahead[tenant] = virtual
            for tag, prompt in zip(sorted(tags), mine, strict=True):
                turns.append((level, tag, prompt.due_s, len(turns), prompt))
        return [turn[-1] for turn in sorted(turns, key=lambda turn: turn[:4])]

    def began(self, prompt: P) -> None:
        """Its first tokens are about to be computed: its tenant pays for all of it. Idempotent."""
        if prompt.tag >= 0.0:
            return
        prompt.tag = self._virtual(prompt.tenant)
        self._now = max(self._now, prompt.tag)
        self._served[prompt.tenant] = prompt.tag + _cost(prompt)
        if len(self._served) > _TENANTS_MAX:
            self._forget()

    def _virtual(self, tenant: TenantId) -> float:
        return max(self._now, self._served.get(tenant, 0.0))

    def _forget(self) -> None:
        """Tenants that are level with the others need no memory; of the rest, the furthest stay."""
        ahead = [item for item in self._served.items() if item[1] > self._now]
        ahead.sort(key=lambda item: -item[1])
        self._served = dict(ahead[: _TENANTS_MAX // 2])

    def stats(self) -> dict[str, int]:
        return {"tenants": len(self._served)}

    def check(self) -> None:
        assert len(self._served) <= _TENANTS_MAX
        assert self._now >= 0.0


def _class_of(prompt: Prompt, now_s: float) -> int:
    return prompt.level - max(0, int((now_s - prompt.queued_at_s) / AGE_S))


def _cost(prompt: Prompt) -> float:
    return max(1, prompt.prompt_tokens - prompt.computed) / prompt.weight
