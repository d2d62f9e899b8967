"""Eight NICs of 400 Gb/s on virtual time: spraying against the best schedule that anybody could
find who knew every NIC's future."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moonpool.transfer.base import Priority
from moonpool.transfer.spraying import NicLoad, Spray, slice_bytes
from moonpool.transfer.topology import PREFERRED, Gpu, Machine, Place, matrix_of
from moonpool.transfer.topology import Nic as MachineNic
from tests.sim.nics import Fabric, Nic, best_s

SPEED_BYTES_S = 50e9
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SEEDS = range(3)
NEVER = -1.0


def eight(**third: float) -> list[Nic]:
    """Equal NICs but for the fourth, which `third` changes."""
    nics = [Nic(SPEED_BYTES_S) for _ in range(8)]
    nics[3] = Nic(third.pop("speed_bytes_s", SPEED_BYTES_S), **third)
    return nics


def over_best(nics: list[Nic], size_bytes: int, seed: int, *, known: bool = False) -> float:
    """Time taken over the least possible. `known`: the NICs were used before."""
    fabric = Fabric(nics, seed)
    if known:
        fabric.transfer(2 * GIB)
        fabric.idle(0.001)
    outcome = fabric.transfer(size_bytes)
    ratio = outcome.took_s / best_s(size_bytes, nics)
    print(f"seed={seed} bytes={size_bytes} took_s={outcome.took_s:.6f} over_best={ratio:.4f}")
    return ratio


def sizes(seed: int, least: int, most: int) -> list[int]:
    """A dozen, spread evenly over orders of magnitude, none of them round."""
    random_of = random.Random(seed)
    steps = (most / least) ** (1 / 11)
    return [int(least * steps**i * random_of.uniform(0.95, 1.05)) for i in range(12)]


@pytest.mark.parametrize("seed", SEEDS)
def test_eight_equal_nics_end_within_five_percent_of_the_best(seed: int) -> None:
    assert max(over_best(eight(), size, seed) for size in sizes(seed, 64 * MIB, 8 * GIB)) < 1.05


@pytest.mark.parametrize("seed", SEEDS)
def test_so_do_eight_of_which_one_has_half_the_speed(seed: int) -> None:
    slow = SPEED_BYTES_S / 2
    worst = max(
        over_best(eight(speed_bytes_s=slow), size, seed) for size in sizes(seed, 64 * MIB, 8 * GIB)
    )
    assert worst < 1.05


@pytest.mark.parametrize("seed", SEEDS)
def test_so_do_eight_of_which_one_fails_on_the_way(seed: int) -> None:
    """Errors come 100 us after the failure, so the transfer must be long against that."""
    random_of = random.Random(seed)
    for size in sizes(seed, 256 * MIB, 8 * GIB):
        fails_s = best_s(size, eight()) * random_of.uniform(0.05, 0.8)
        assert over_best(eight(fails_s=fails_s), size, seed) < 1.05


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("seed", SEEDS)
def test_of_nics_that_are_known_even_small_transfers_make_the_best(seed: int, share: float) -> None:
    worst = max(
        over_best(eight(speed_bytes_s=SPEED_BYTES_S * share), size, seed, known=True)
        for size in sizes(seed, 4 * KIB, GIB)
    )
    assert worst < 1.05


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    speeds=st.lists(st.floats(0.25, 1.0), min_size=1, max_size=8),
    size_bytes=st.integers(1, 2 * GIB),
    seed=st.integers(0, 1 << 30),
)
def test_nics_of_any_speeds_share_it_by_speed(
    speeds: list[float], size_bytes: int, seed: int
) -> None:
    nics = [Nic(SPEED_BYTES_S * share) for share in speeds]
    assert over_best(nics, size_bytes, seed, known=True) < 1.05


def test_a_nic_that_swallows_everything_is_given_up_after_a_moment() -> None:
    """No error ever comes: half a second of silence is what tells."""
    size = 4 * GIB
    fabric = Fabric(eight(fails_s=0.004, detect_s=NEVER), 1)
    outcome = fabric.transfer(size)
    assert outcome.took_s < 0.6
    assert outcome.rests[3] == 1
    assert outcome.retries > 0


def test_a_healed_nic_is_used_again() -> None:
    fabric = Fabric(eight(fails_s=0.002, heals_s=2.0), 1)
    fabric.transfer(GIB)
    assert fabric.transfer(GIB).bytes_by_nic[3] == 0
    rests = 0
    while fabric.now_s < 6.0:
        fabric.idle(0.2)
        rests = fabric.transfer(GIB).rests[3]
    assert fabric.transfer(GIB).bytes_by_nic[3] == pytest.approx(GIB / 8, rel=0.1)
    assert 2 <= rests <= 4  # 0.5 s, 1 s, 2 s: not a try for every transfer


def test_a_nic_far_slower_than_the_others_rests_and_is_looked_at_again() -> None:
    nics = eight(speed_bytes_s=SPEED_BYTES_S / 50)
    fabric = Fabric(nics, 1)
    fabric.transfer(8 * GIB)
    assert fabric.transfer(GIB).bytes_by_nic[3] == 0
    nics[3].speed_bytes_s = SPEED_BYTES_S
    fabric.idle(1.0)
    fabric.transfer(4 * GIB)
    assert fabric.transfer(4 * GIB).bytes_by_nic[3] == pytest.approx(GIB / 2, rel=0.1)


def test_a_nic_that_becomes_slow_is_given_less_within_the_transfer() -> None:
    nics = eight()
    fabric = Fabric(nics, 1)
    fabric.transfer(GIB)
    nics[3].speed_bytes_s = SPEED_BYTES_S / 2
    assert fabric.transfer(8 * GIB).bytes_by_nic[3] == pytest.approx(8 * GIB / 15, rel=0.1)


def test_far_nics_are_used_only_while_the_near_ones_rest() -> None:
    near = (0, 0, 0, 0, 1, 1, 1, 1)
    fabric = Fabric([Nic(SPEED_BYTES_S) for _ in range(8)], 1)
    assert fabric.transfer(GIB, near).bytes_by_nic[4:] == [0, 0, 0, 0]
    fabric.nics[0].fails_s = fabric.now_s
    assert fabric.transfer(GIB, near).bytes_by_nic[4:] == [0, 0, 0, 0]
    for nic in fabric.nics[1:4]:
        nic.fails_s = fabric.now_s
    outcome = fabric.transfer(GIB, near)
    assert sum(outcome.bytes_by_nic[4:]) > 0.9 * GIB


def two_sockets() -> Machine:
    """Four adapters and two GPUs on each NUMA node; each GPU shares a switch with two adapters."""
    places = [Place(i // 4, (f"pci{i // 4}", f"switch{i // 2}", f"slot{i}")) for i in range(8)]
    gpus = [Place(i // 2, (f"pci{i // 2}", f"switch{i}", f"gpu{i}")) for i in range(4)]
    return Machine(
        {0: [10, 21], 1: [21, 10]},
        [MachineNic(f"mlx5_{i}", "rdma", place) for i, place in enumerate(places)],
        [Gpu(f"cuda:{i}", f"gpu{i}", place) for i, place in enumerate(gpus)],
    )


@pytest.mark.parametrize(("location", "near"), [("cpu:1", 4), ("cuda:0", 2), ("", 8)])
@pytest.mark.parametrize("seed", SEEDS)
def test_memory_anywhere_makes_the_best_of_the_nics_near_it(
    location: str, near: int, seed: int
) -> None:
    topology = matrix_of(two_sockets())
    ranks = tuple(topology.rank(location, f"mlx5_{i}") for i in range(8))
    nics = [Nic(SPEED_BYTES_S) for _ in range(8)]
    mine = [nic for nic, rank in zip(nics, ranks, strict=True) if rank == PREFERRED]
    assert len(mine) == near
    mine[0].speed_bytes_s /= 2
    for size in sizes(seed, 64 * MIB, 4 * GIB):
        took_s = Fabric([replace(nic) for nic in nics], seed).transfer(size, ranks).took_s
        assert took_s < 1.05 * best_s(size, mine)


def test_memory_near_other_nics_does_not_wait_behind_memory_near_busy_ones() -> None:
    spray: Spray[str] = Spray([NicLoad("a"), NicLoad("b")])
    for _ in range(20):
        spray.put("left", MIB, (0, 1), Priority.FOREGROUND, 0.0)
    while spray.next(0.0):
        pass
    spray.put("right", MIB, (1, 0), Priority.FOREGROUND, 0.0)
    handed = spray.next(0.0)
    assert handed is not None
    assert (handed.load.item, handed.way) == ("right", 1)


def test_a_slice_that_every_way_fails_twice_is_given_up() -> None:
    spray: Spray[str] = Spray([NicLoad("a"), NicLoad("b")])
    spray.put("x", MIB, (0, 1), Priority.FOREGROUND, 0.0)
    ways = []
    for _ in range(4):
        handed = spray.next(0.0)
        assert handed is not None
        ways.append(handed.way)
        again = spray.failed(handed.load, 0.0)
        spray.check()
    assert ways == [0, 1, 0, 1]
    assert not again
    assert not spray.waiting


def test_a_way_cut_for_the_sake_of_another_slice_does_not_rest() -> None:
    spray: Spray[str] = Spray([NicLoad("a"), NicLoad("b")])
    for _ in range(40):
        spray.put("x", MIB, (0, 1), Priority.FOREGROUND, 0.0)
        handed = spray.next(0.0)
        assert handed is not None
        assert handed.way == 0
        assert spray.failed(handed.load, 0.0, collateral=True)
        handed = spray.next(0.0)
        assert handed is not None
        assert handed.way == 0
        spray.arrived(handed.load, 0.0)
        spray.check()


def test_a_stopped_peer_is_not_taken_for_a_broken_way_when_no_other_is_left() -> None:
    spray: Spray[str] = Spray([NicLoad("a"), NicLoad("b")])
    spray.put("x", MIB, (0, 0), Priority.FOREGROUND, 0.0)
    first = spray.next(0.0)
    assert first is not None
    assert spray.overdue(0.4) == []
    assert spray.overdue(0.6) == [first.way]
    spray.taken_back(first.load, 0.6)
    second = spray.next(0.6)
    assert second is not None
    assert second.way != first.way
    assert spray.overdue(1.0) == []
    assert spray.overdue(1.3) == []  # the other way rests, or has yet to show that it works
    spray.arrived(second.load, 5.0)
    assert spray.stats(5.0)[second.way]["bytes"] == MIB


@pytest.mark.parametrize(
    ("payload", "ways", "expected"),
    [
        (1, 1, 8 * MIB),
        (GIB, 1, 8 * MIB),
        (1, 8, 64 * KIB),
        (16 * MIB, 8, 64 * KIB),
        (64 * MIB, 2, MIB),
        (GIB, 8, 4 * MIB),
        (100 * GIB, 8, 8 * MIB),
    ],
)
def test_slices_grow_with_the_transfer(payload: int, ways: int, expected: int) -> None:
    assert slice_bytes(payload, ways) == expected


def test_slices_are_never_so_small_that_they_cost_more_than_they_bring() -> None:
    assert slice_bytes(4 * MIB, 2, worth_bytes=600e3) == 576 * KIB
    assert slice_bytes(GIB, 2, worth_bytes=600e3) == 8 * MIB
    assert slice_bytes(4 * MIB, 2, worth_bytes=100e6) == 8 * MIB
