"""Who copies what where when a holder is gone: decided alike by all, done by one."""

from services.store.copies import Verdict, judge
from tests.unit.store.test_core import key
from tests.unit.store.test_quotas import ACME, make_core, put

RANKED = ["b", "a", "d", "c"]


def test_the_first_holder_in_the_keys_order_copies_to_the_first_that_lack_it() -> None:
    assert judge("a", RANKED, {"a", "c"}, (), 4) == Verdict(("b", "d"))
    assert judge("c", RANKED, {"a", "c"}, (), 4) == Verdict()


def test_enough_copies_are_left_alone_and_those_beyond_are_extra() -> None:
    assert judge("a", RANKED, {"a", "c"}, (), 2) == Verdict()
    assert judge("c", RANKED, {"a", "b", "c"}, (), 2) == Verdict(is_extra=True)
    assert judge("a", RANKED, {"a", "b", "c"}, (), 2) == Verdict()


def test_a_silent_node_is_neither_replaced_nor_relied_on() -> None:
    assert judge("a", RANKED, {"a"}, {"b"}, 2) == Verdict(is_open=True)
    assert judge("a", RANKED, {"a"}, {"b"}, 3) == Verdict(("d", "c"))


def test_too_few_nodes_are_looked_at_again() -> None:
    assert judge("a", ["a", "b"], {"a"}, (), 3) == Verdict(("b",), is_open=True)


def test_what_is_wanted_more_than_once_is_due_and_all_of_it_when_somebody_goes() -> None:
    core = make_core()
    put(core, ACME, 1, 2, 3)
    core.copies.want([key(1), key(2)], 2)
    core.copies.want([key(3)], 1)
    assert core.copies.take_due(10) == [key(1), key(2)]
    assert core.copies.take_due(10) == []
    core.residents.drop(core.residents.objects[key(2)])
    core.pin(ACME, [key(3)], "hard", 0.0, 0.0, replicas=3)
    core.copies.take_due(10)
    core.copies.all_due()
    assert core.copies.take_due(10) == [key(1), key(3)]
    assert core.copies.wanted(key(3)) == 3


def test_an_extra_copy_goes_first_unless_it_is_used() -> None:
    core = make_core(dram_pages=3)
    put(core, ACME, 1)
    put(core, ACME, 2)
    put(core, ACME, 3)
    core.residents.mark_extra(key(2))
    core.residents.mark_extra(key(3))
    core.get_end(core.get_start(ACME, [key(2)], 1.0, 1.0)[0], 1.0)
    put(core, ACME, 4, now=2.0)
    assert set(core.live_keys()) == {key(1), key(2), key(4)}
