import random

import pytest

from moonpool.cache import LruPolicy
from moonpool.kv import BlockKey, BlockPool, block_keys, chain_root, isolation_salt, next_key


def make_pool(blocks: int = 4) -> BlockPool:
    return BlockPool(blocks, block_bytes=1, order=LruPolicy())


def key(n: int) -> BlockKey:
    return BlockKey(n.to_bytes(16, "little"))


def test_allocate_is_all_or_nothing() -> None:
    pool = make_pool(3)
    assert pool.allocate(4, 0.0) is None
    assert pool.blocks_free == 3
    blocks = pool.allocate(3, 0.0)
    assert blocks is not None
    assert sorted(blocks) == [0, 1, 2]
    assert pool.allocate(1, 0.0) is None
    pool.check()


def test_a_published_block_is_found_after_its_user_left_and_shared_by_the_next() -> None:
    pool = make_pool(2)
    (block,) = pool.allocate(1, 0.0) or []
    assert pool.publish(key(1), block)
    pool.release([block], 1.0)
    assert pool.match([key(1), key(2)]) == [block]
    pool.acquire([block], 2.0)
    pool.acquire([block], 2.0)
    pool.release([block], 3.0)
    assert pool.blocks_free == 1
    pool.release([block], 3.0)
    assert pool.blocks_free == 2
    pool.check()


def test_cached_blocks_are_evicted_tail_first_and_reported_in_order() -> None:
    pool = make_pool(3)
    blocks = pool.allocate(3, 0.0) or []
    for i, block in enumerate(blocks):
        pool.publish(key(i), block)
    pool.release(blocks, 1.0)
    assert pool.allocate(2, 2.0) is not None
    assert pool.match([key(0), key(1), key(2)]) == [blocks[0]]
    changes = pool.take_changes()
    assert changes[:3] == [(key(0), True), (key(1), True), (key(2), True)]
    assert changes[3:] == [(key(2), False), (key(1), False)]
    assert pool.evictions == 2
    pool.check()


def test_a_used_block_is_never_evicted() -> None:
    pool = make_pool(2)
    (block,) = pool.allocate(1, 0.0) or []
    pool.publish(key(1), block)
    assert pool.allocate(2, 0.0) is None
    assert pool.holds(key(1))
    pool.check()


def test_a_second_block_with_the_same_key_stays_unfindable_and_is_freed_when_released() -> None:
    pool = make_pool(2)
    first, second = pool.allocate(2, 0.0) or []
    assert pool.publish(key(1), first)
    assert not pool.publish(key(1), second)
    pool.release([second], 0.0)
    assert pool.match([key(1)]) == [first]
    pool.check()


def test_a_forgotten_block_is_freed_only_when_its_last_user_leaves() -> None:
    pool = make_pool(1)
    (block,) = pool.allocate(1, 0.0) or []
    pool.publish(key(1), block)
    pool.forget(key(1))
    assert pool.match([key(1)]) == []
    assert pool.blocks_free == 0
    pool.release([block], 0.0)
    assert pool.blocks_free == 1
    pool.check()


def test_releasing_too_often_is_our_bug_and_ends_the_process() -> None:
    pool = make_pool(1)
    blocks = pool.allocate(1, 0.0) or []
    pool.release(blocks, 0.0)
    with pytest.raises(AssertionError, match="once too often"):
        pool.release(blocks, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_random_steps_keep_every_block_in_exactly_one_state(seed: int) -> None:
    rng = random.Random(seed)
    pool, held = make_pool(16), list[list[int]]()
    for step in range(2000):
        match rng.randrange(4):
            case 0:
                blocks = pool.allocate(rng.randrange(1, 5), step)
                if blocks:
                    held.append(blocks)
            case 1 if held:
                pool.release(held.pop(rng.randrange(len(held))), step)
            case 2 if held:
                pool.publish(key(rng.randrange(40)), rng.choice(rng.choice(held)))
            case 3:
                found = pool.match([key(rng.randrange(40))])
                if found and rng.random() < 0.5:
                    pool.acquire(found, step)
                    held.append(found)
        pool.check()


def test_keys_name_content_and_prefix() -> None:
    root = chain_root(b"model", isolation_salt(b"secret", "tenant"))
    tokens = list(range(70))
    keys = block_keys(root, tokens, 16)
    assert len(keys) == 4
    assert keys == block_keys(root, tokens[:64], 16)
    changed = block_keys(root, [99, *tokens[1:]], 16)
    assert not set(keys) & set(changed)
    assert next_key(keys[2], tokens[48:64]) == keys[3]


@pytest.mark.parametrize(
    ("fingerprint", "secret", "tenant", "salt"),
    [
        (b"other", b"secret", "tenant", ""),
        (b"model", b"other", "tenant", ""),
        (b"model", b"secret", "other", ""),
        (b"model", b"secret", "tenant", "x"),
    ],
)
def test_model_secret_tenant_and_salt_each_give_other_keys(
    fingerprint: bytes, secret: bytes, tenant: str, salt: str
) -> None:
    mine = chain_root(b"model", isolation_salt(b"secret", "tenant"))
    theirs = chain_root(fingerprint, isolation_salt(secret, tenant, salt))
    assert block_keys(mine, list(range(16)), 16) != block_keys(theirs, list(range(16)), 16)
