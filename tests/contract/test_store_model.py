"""A store against a dictionary: thousands of random steps, over one node and over three."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from moonpool.client import Store
from tests.support.store_worlds import STRIPE_BYTES, store_world

NAMES = [f"n/{n}" for n in range(6)] + ["other", "ünï"]
SIZES = st.sampled_from([0, 1, 300, 16 << 10, 70_000, STRIPE_BYTES, 2 * STRIPE_BYTES + 5])
NAME = st.sampled_from(NAMES)
NODES = [f"node-{n}" for n in range(1, 4)]


class StoreModel(RuleBasedStateMachine):
    """Values are told apart by a counter; their bytes repeat it."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        entered = self.stack.enter_async_context(store_world(self.kind))
        self.store: Store = self.loop.run(self._enter(entered))
        self.model: dict[str, bytes] = {}
        self.pinned: set[str] = set()
        self.made = 0

    @staticmethod
    async def _enter(entering: Coroutine[Any, Any, Store]) -> Store:
        return await entering

    def teardown(self) -> None:
        try:
            self.loop.run(self.stack.aclose())
        finally:
            self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(work)

    def value(self, size_bytes: int) -> bytes:
        self.made += 1
        return (f"{self.made:08d}".encode() * (size_bytes // 8 + 1))[:size_bytes]

    @rule(name=NAME, size=SIZES, replace=st.booleans(), replicas=st.sampled_from([1, 1, 2]))
    def put(self, name: str, size: int, replace: bool, replicas: int) -> None:
        value = self.value(size)
        done = self.do(self.store.put(name, value, replace=replace, replicas=replicas))
        assert done == (replace or name not in self.model)
        if done:
            if name not in self.model:
                self.pinned.discard(name)
            self.model[name] = value

    @rule(sizes=st.dictionaries(NAME, SIZES, min_size=1), replace=st.booleans())
    def put_many(self, sizes: dict[str, int], replace: bool) -> None:
        values = {name: self.value(size) for name, size in sizes.items()}
        done = self.do(self.store.put_many(values, replace=replace))
        assert done == {name: replace or name not in self.model for name in values}
        self.model |= {name: value for name, value in values.items() if done[name]}

    @rule(names=st.lists(NAME, min_size=1))
    def get_many(self, names: list[str]) -> None:
        got = self.do(self.store.get_many(names))
        assert {n: r.unwrap() for n, r in got.items()} == {n: self.model.get(n) for n in names}
        assert self.do(self.store.exist_many(names)) == {n: n in self.model for n in names}
        sizes = self.do(self.store.size_many(names))
        assert sizes == {n: len(self.model[n]) if n in self.model else None for n in names}

    @rule(name=NAME, start=st.integers(0, 300_000), length=st.integers(0, 200_000))
    def get_range(self, name: str, start: int, length: int) -> None:
        value = self.model.get(name)
        start = min(start, len(value)) if value is not None else start
        got = self.do(self.store.get_range(name, start, length))
        assert got == (None if value is None else value[start : start + length])

    @rule(names=st.lists(NAME, min_size=1, unique=True))
    def remove_many(self, names: list[str]) -> None:
        removed = self.do(self.store.remove_many(names))
        assert removed == {n: n in self.model and n not in self.pinned for n in names}
        for name in names:
            if removed[name]:
                self.model.pop(name)

    @rule(prefix=st.sampled_from(["", "n/", "n/3", "nowhere"]))
    def list_names(self, prefix: str) -> None:
        async def collect() -> list[tuple[str, int]]:
            return [(e.name, e.size_bytes) async for e in self.store.list_names(prefix)]

        wanted = sorted((n, len(v)) for n, v in self.model.items() if n.startswith(prefix))
        assert self.do(collect()) == wanted
        assert self.do(self.store.count(prefix)) == len(wanted)

    @rule(prefix=st.sampled_from(["n/1", "n/"]))
    def remove_prefix(self, prefix: str) -> None:
        gone = [n for n in self.model if n.startswith(prefix) and n not in self.pinned]
        assert self.do(self.store.remove_prefix(prefix)) == len(gone)
        for name in gone:
            del self.model[name]

    @rule(name=NAME, kind=st.sampled_from(["soft", "hard", "none"]))
    def pin_for_a_moment(self, name: str, kind: str) -> None:
        """Unpinned again at once, so that what a replaced value inherits does not matter."""
        is_there = name in self.model
        assert self.do(self.store.pin(name, kind)) == is_there
        if is_there and kind == "hard":
            assert not self.do(self.store.remove(name))
        assert self.do(self.store.unpin(name)) == is_there

    @rule(name=NAME, leaves=st.sampled_from(NODES), comes=st.sampled_from(NODES))
    def move_copies(self, name: str, leaves: str, comes: str) -> None:
        if self.kind != "nodes":
            return
        store: Any = self.store
        assert self.do(store.add_replica(name, comes)) == (name in self.model)
        if leaves != comes:
            self.do(store.drop_replica(name, leaves))
        copies = self.do(store.replicas(name))
        assert (copies is not None) == (name in self.model)
        assert copies is None or comes in copies.nodes

    @rule()
    def wipe(self) -> None:
        if self.made % 3:
            return
        self.do(self.store.wipe())
        self.model.clear()

    @invariant()
    def one_name_is_as_the_dictionary_says(self) -> None:
        name = NAMES[self.made % len(NAMES)]
        assert self.do(self.store.get(name)) == self.model.get(name)


def run_model(kind: str, examples: int, steps: int) -> None:
    model = type("Model", (StoreModel,), {"kind": kind})
    run: Callable[..., None] = run_state_machine_as_test
    run(
        model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # a failure is shown as it is: shrinking would take minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("kind", ["memory", "node", "nodes"])
def test_random_steps_agree_with_a_dictionary(kind: str) -> None:
    run_model(kind, examples=3, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "node", "nodes"])
def test_thousands_of_random_steps_agree_with_a_dictionary(kind: str) -> None:
    run_model(kind, examples=int(os.environ.get("MODEL_EXAMPLES", "10")), steps=100)
