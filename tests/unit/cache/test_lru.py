"""LRU in detail: runs are touched tail first. FIFO: uses do not count."""

from collections.abc import Iterator

from moonpool.cache import FifoPolicy, LruPolicy


def drain(policy: LruPolicy[str] | FifoPolicy[str]) -> Iterator[str]:
    while (key := policy.victim(0.0)) is not None:
        policy.remove(key)
        yield key


def test_the_tail_of_a_used_run_goes_before_its_head() -> None:
    policy: LruPolicy[str] = LruPolicy()
    for key in ("head", "middle", "tail", "other"):
        policy.insert(key, 1, 0.0)
    policy.touch(["head", "middle", "tail"], 1.0)
    assert list(drain(policy)) == ["other", "tail", "middle", "head"]


def test_unknown_keys_of_a_run_are_ignored() -> None:
    policy: LruPolicy[str] = LruPolicy()
    policy.insert("a", 1, 0.0)
    policy.insert("b", 1, 0.0)
    policy.touch(iter(["a", "unknown"]), 1.0)
    assert list(drain(policy)) == ["b", "a"]


def test_fifo_lets_the_oldest_go_however_often_it_was_used() -> None:
    policy: FifoPolicy[str] = FifoPolicy()
    for key in ("a", "b", "c"):
        policy.insert(key, 1, 0.0)
    policy.touch(["a"], 1.0)
    assert list(drain(policy)) == ["a", "b", "c"]
