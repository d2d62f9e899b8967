"""Where values go."""

from collections import Counter
from random import Random

import pytest

from moonpool.client.placement import (
    SLOW_START_S,
    STRATEGY_NAMES,
    NodeView,
    make_strategy,
    rank_nodes,
)
from moonpool.kv.named import named_key

NODES = [NodeView("a"), NodeView("b"), NodeView("c")]
KEYS = [named_key("t", str(n)) for n in range(1500)]


def firsts(name: str, nodes: list[NodeView]) -> Counter[str]:
    strategy, rng = make_strategy(name), Random(3)
    return Counter(strategy.order(key, nodes, rng)[0].id for key in KEYS)


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_every_strategy_orders_all_nodes(name: str) -> None:
    order = make_strategy(name).order(KEYS[0], NODES, Random(1))
    assert sorted(node.id for node in order) == ["a", "b", "c"]


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_equal_nodes_share_evenly(name: str) -> None:
    assert min(firsts(name, NODES).values()) > 400


def test_nodes_share_values_evenly_and_a_lost_one_moves_only_its_own() -> None:
    for key in KEYS:
        node = rank_nodes(key, ["a", "b", "c"])[0]
        left = rank_nodes(key, ["c", "a"])[0]
        assert left == node or node == "b"


def test_local_nodes_come_first_and_share_among_themselves() -> None:
    nodes = [NodeView("a", is_local=True), NodeView("b"), NodeView("c", is_local=True)]
    assert set(firsts("local_first", nodes)) == {"a", "c"}


def test_free_memory_draws_values_and_free_disk_those_of_the_other() -> None:
    nodes = [NodeView("a", free_ratio=0.2), NodeView("b", free_ratio=0.9, ssd_free_ratio=0.1),
             NodeView("c", free_ratio=0.5, ssd_free_ratio=0.4)]  # fmt: skip
    assert set(firsts("free_ratio_first", nodes)) == {"b"}
    assert set(firsts("ssd_free_ratio_first", nodes)) == {"c"}


@pytest.mark.parametrize("name", ["random", "free_ratio_first"])
def test_a_fresh_empty_node_is_not_everybodys_first_choice(name: str) -> None:
    nodes = [NodeView("a", free_ratio=0.3), NodeView("b", free_ratio=0.3),
             NodeView("new", age_s=1.0, free_ratio=1.0)]  # fmt: skip
    grown = [*nodes[:2], NodeView("new", age_s=SLOW_START_S, free_ratio=1.0)]
    assert firsts(name, nodes)["new"] < 200
    assert firsts(name, grown)["new"] > 400


def test_an_unknown_strategy_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="local_first"):
        make_strategy("anywhere")
