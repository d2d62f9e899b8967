"""The order of each policy that is there for comparison, on a handful of keys."""

from collections.abc import Iterator
from typing import Any

from moonpool.cache import EvictionPolicy
from moonpool.cache.arc import ArcPolicy
from moonpool.cache.lfu import LfuPolicy
from moonpool.cache.s3fifo import S3FifoPolicy
from moonpool.cache.sieve import SievePolicy
from moonpool.cache.wtinylfu import WTinyLfuPolicy


def fill(policy: EvictionPolicy[Any], keys: str) -> None:
    for key in keys:
        policy.insert(key, 1, 0.0)


def drain(policy: EvictionPolicy[Any]) -> Iterator[str]:
    while (key := policy.victim(0.0)) is not None:
        policy.remove(key)
        yield key


def test_lfu_lets_the_least_used_go_and_of_those_the_least_recent() -> None:
    policy: LfuPolicy[str] = LfuPolicy()
    fill(policy, "abcd")
    policy.touch("a", 1.0)
    policy.touch("a", 2.0)
    policy.touch("c", 3.0)
    assert list(drain(policy)) == ["b", "d", "c", "a"]


def test_sieve_spares_what_was_used_once_and_goes_on_from_there() -> None:
    policy: SievePolicy[str] = SievePolicy()
    fill(policy, "abcd")
    policy.touch("ac", 1.0)
    assert policy.victim(1.0) == "b"
    policy.remove("b")
    policy.insert("e", 1, 2.0)
    assert list(drain(policy)) == ["d", "e", "a", "c"]


def test_s3fifo_promotes_what_was_used_twice_and_takes_back_whom_it_remembers() -> None:
    policy: S3FifoPolicy[str] = S3FifoPolicy(blocks_max=10)
    fill(policy, "abc")
    policy.touch("a", 1.0)
    policy.touch("a", 2.0)
    assert policy.victim(3.0) == "b"
    policy.remove("b")
    policy.insert("b", 1, 4.0)  # into the main queue, behind a; c is the small one's share
    assert list(drain(policy)) == ["a", "b", "c"]


def test_arc_keeps_what_was_used_again_longer_and_widens_the_list_whose_ghosts_return() -> None:
    policy: ArcPolicy[str] = ArcPolicy(blocks_max=4)
    fill(policy, "abcd")
    policy.touch("a", 1.0)
    assert policy.victim(1.0) == "b"
    policy.remove("b")
    policy.insert("b", 1, 2.0)  # a ghost of those used once returns: they get one place
    assert list(drain(policy)) == ["c", "a", "b", "d"]


def test_wtinylfu_lets_a_newcomer_in_only_past_a_less_used_one() -> None:
    policy: WTinyLfuPolicy[str] = WTinyLfuPolicy(blocks_max=4)
    fill(policy, "abcd")
    policy.touch("abc", 1.0)
    policy.insert("x", 1, 2.0)  # pushes d out of the window, against those used twice
    assert policy.victim(2.0) == "d"
