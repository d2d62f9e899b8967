"""Every tier's ledger keeps the same promises."""

import random

import numpy as np
import pytest

from services.store.tiers import DramTier, LowerTier, NvmeTier, OssTier, Tier


def release(tier: Tier | LowerTier, place: int, size_bytes: int) -> None:
    if isinstance(tier, DramTier):
        tier.release(place)
    else:
        tier.release(place, size_bytes)


def restored(tier: LowerTier, *taken: tuple[int, int]) -> list[int]:
    places, sizes = np.array(taken, np.int64).T
    out: list[int] = tier.restore(places, sizes).tolist()
    return out


@pytest.fixture(params=[DramTier, NvmeTier, OssTier], ids=["dram", "nvme", "oss"])
def tier(request: pytest.FixtureRequest) -> Tier | LowerTier:
    made: Tier | LowerTier = request.param(1 << 20)
    return made


def test_places_never_overlap_and_all_bytes_come_back(tier: Tier | LowerTier) -> None:
    choose, taken = random.Random(1), dict[int, int]()
    for _ in range(2000):
        size_bytes = choose.randint(1, 60_000)
        place = tier.reserve(size_bytes)
        if place is None or choose.random() < 0.5:
            for gone in choose.sample(sorted(taken), k=min(len(taken), 2)):
                release(tier, gone, taken.pop(gone))
        if place is not None:
            taken[place] = tier.footprint(size_bytes)
        tier.check()
        assert tier.bytes_used == sum(taken.values()) <= tier.bytes_total
    for place, size_bytes in taken.items():
        release(tier, place, size_bytes)
    assert tier.bytes_used == 0
    assert tier.reserve(tier.bytes_total) is not None
    assert tier.reserve(1) is None
    stats = tier.stats(1, 7)
    assert (stats.bytes_used, stats.evictions, stats.health) == (tier.bytes_total, 7, "ok")


def test_more_cannot_be_given_back_than_was_taken(tier: Tier | LowerTier) -> None:
    with pytest.raises((KeyError, AssertionError)):
        release(tier, 123, 4096)


@pytest.mark.parametrize("make", [DramTier, NvmeTier])
def test_free_bytes_that_one_object_cannot_get_are_told(make: type[DramTier | NvmeTier]) -> None:
    tier = make(4 * 4096)
    assert tier.stats(0, 0).fragmentation == 0.0
    places = [tier.reserve(4096) for _ in range(4)]
    assert tier.stats(4, 0).fragmentation == 0.0  # nothing is free
    for place in (places[0], places[2]):
        assert place is not None
        release(tier, place, 4096)
    assert tier.fragmentation == tier.stats(2, 0).fragmentation == 0.5  # two holes of one page
    assert places[1] is not None
    release(tier, places[1], 4096)
    assert tier.stats(1, 0).fragmentation == 0.0


def test_places_of_an_earlier_life_are_taken_again() -> None:
    tier = NvmeTier(1 << 20)
    assert restored(tier, (8192, 5000), (65536, 4096)) == [8192, 65536]
    tier.check()
    assert tier.bytes_used == 8192 + 4096
    places = set[int]()
    while (place := tier.reserve(4096)) is not None:
        places.add(place)
    assert not places & {8192, 12288, 65536}
    assert len(places) == (1 << 20) // 4096 - 3
    tier.release(8192, 5000)
    assert tier.reserve(8192) == 8192
    with pytest.raises(ValueError, match="before any"):
        restored(tier, (0, 4096))
    with pytest.raises(ValueError, match="overlap"):
        restored(NvmeTier(1 << 20), (0, 8192), (4096, 4096))


def test_a_bucket_may_hold_more_than_its_budget() -> None:
    tier = OssTier(1000)
    places = restored(tier, (0, 900), (0, 900))
    assert tier.reserve(1) is None
    for place in places:
        tier.release(place, 900)
    assert tier.reserve(1000) is not None
