"""Every tier's ledger keeps the same promises."""

import random

import pytest

from services.store.tiers import DramTier, NvmeTier, OssTier, Tier


def make_tiers() -> list[Tier]:
    return [DramTier(1 << 20), NvmeTier(1 << 20), OssTier(1 << 20)]


each_tier = pytest.mark.parametrize("tier", make_tiers(), ids=lambda tier: str(tier.name))


@each_tier
def test_places_never_overlap_and_all_bytes_come_back(tier: Tier) -> None:
    choose, taken = random.Random(1), dict[int, int]()
    for _ in range(2000):
        size_bytes = choose.randint(1, 60_000)
        place = tier.reserve(size_bytes)
        if place is None or choose.random() < 0.5:
            for gone in choose.sample(sorted(taken), k=min(len(taken), 2)):
                tier.release(gone)
                del taken[gone]
        if place is not None:
            taken[place] = tier.footprint(size_bytes)
        tier.check()
        assert tier.bytes_used == sum(taken.values()) <= tier.bytes_total
    for place in taken:
        tier.release(place)
    assert tier.bytes_used == 0
    assert tier.reserve(tier.bytes_total) is not None
    assert tier.reserve(1) is None
    stats = tier.stats(1, 7)
    assert (stats.bytes_used, stats.evictions, stats.health) == (tier.bytes_total, 7, "ok")


@each_tier
def test_a_place_that_is_not_taken_cannot_be_released(tier: Tier) -> None:
    with pytest.raises(KeyError):
        tier.release(123)


def test_places_of_an_earlier_life_are_taken_again() -> None:
    tier = NvmeTier(1 << 20)
    assert tier.restore([(8192, 5000), (65536, 4096)]) == [8192, 65536]
    tier.check()
    assert tier.bytes_used == 8192 + 4096
    places = set[int]()
    while (place := tier.reserve(4096)) is not None:
        places.add(place)
    assert not places & {8192, 12288, 65536}
    assert len(places) == (1 << 20) // 4096 - 3
    tier.release(8192)
    assert tier.reserve(8192) == 8192
    with pytest.raises(ValueError, match="before any"):
        tier.restore([(0, 4096)])
    with pytest.raises(ValueError, match="overlap"):
        NvmeTier(1 << 20).restore([(0, 8192), (4096, 4096)])


def test_a_bucket_may_hold_more_than_its_budget() -> None:
    tier = OssTier(1000)
    places = tier.restore([(0, 900), (0, 900)])
    assert tier.reserve(1) is None
    for place in places:
        tier.release(place)
    assert tier.reserve(1000) is not None
