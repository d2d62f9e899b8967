"""The queue over several ways, event by event. How well it does with time: tests/sim."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.transfer.base import Priority
from moonpool.transfer.spraying import Load, NicLoad, Spray

MIB = 1 << 20
NEAR_BOTH = (0, 0)
FOREGROUND, BACKGROUND = Priority.FOREGROUND, Priority.BACKGROUND


def make_spray(ways: int = 2) -> Spray[str]:
    return Spray([NicLoad(f"nic{index}") for index in range(ways)])


def hand_out(spray: Spray[str], now_s: float) -> list[Load[str]]:
    out = []
    while (handed := spray.next(now_s)) is not None:
        assert handed.load.way == handed.way
        out.append(handed.load)
    spray.check()
    return out


def test_what_a_request_waits_for_goes_before_what_nobody_waits_for() -> None:
    spray = make_spray()
    for item, priority in [("later", BACKGROUND)] * 20 + [("now", FOREGROUND)] * 4:
        spray.put(item, MIB, NEAR_BOTH, priority, 0.0)
    assert [load.item for load in hand_out(spray, 0.0)] == ["now"] * 4 + ["later"] * 4


def test_a_way_that_nothing_is_known_of_gets_four_slices_and_no_more() -> None:
    spray = make_spray()
    for _ in range(100):
        spray.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0)
    assert [load.way for load in hand_out(spray, 0.0)].count(0) == 4
    assert [len(way.carried) for way in spray.ways] == [4, 4]
    assert spray.waiting == 92


def test_idle_ways_take_turns() -> None:
    spray = make_spray(3)
    used = []
    for step in range(6):
        spray.put("x", 4096, (0, 0, 0), FOREGROUND, float(step))
        (load,) = hand_out(spray, float(step))
        used.append(load.way)
        spray.arrived(load, step + 0.5)
    assert sorted(used[:3]) == sorted(used[3:]) == [0, 1, 2]


def test_many_small_slices_do_not_make_a_way_slow() -> None:
    spray = make_spray()
    now_s = 0.0
    for size, step_s in [(4 * MIB, 0.001), (4096, 0.00005)]:
        for _ in range(40):
            for _ in range(4):
                spray.put("x", size, NEAR_BOTH, FOREGROUND, now_s)
            for load in hand_out(spray, now_s):
                now_s += step_s
                spray.arrived(load, now_s)
    assert [way.rest.times for way in spray.ways] == [0, 0]
    assert min(way.speed_bytes_s(now_s) for way in spray.ways) > 1e9


def test_what_nobody_wants_any_more_leaves_no_trace() -> None:
    spray = make_spray()
    loads = [spray.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0) for _ in range(20)]
    on_ways = hand_out(spray, 0.0)
    for load in loads:
        spray.dropped(load)
        spray.check()
    assert len(on_ways) == 8
    assert hand_out(spray, 1.0) == []
    assert spray.waiting == 0
    assert [way.nic.pending_bytes for way in spray.ways] == [0, 0]


def test_a_way_that_rests_is_tried_with_one_slice_and_no_more() -> None:
    spray = make_spray()
    spray.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0)
    (load,) = hand_out(spray, 0.0)
    bad, good = load.way, 1 - load.way
    assert spray.failed(load, 0.0)
    assert [each.way for each in hand_out(spray, 0.1)] == [good]
    for _ in range(20):
        spray.put("y", MIB, NEAR_BOTH, FOREGROUND, 1.0)
    assert [each.way for each in hand_out(spray, 1.0)].count(bad) == 1


def test_a_slice_alone_does_not_try_a_way_that_may_not_work() -> None:
    spray = make_spray()
    spray.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0)
    (load,) = hand_out(spray, 0.0)
    good = 1 - load.way
    assert spray.failed(load, 0.0)
    spray.arrived(hand_out(spray, 0.1)[0], 0.2)
    for step in range(4):
        spray.put("y", MIB, NEAR_BOTH, FOREGROUND, 1.0 + step)
        (load,) = hand_out(spray, 1.0 + step)
        assert load.way == good
        spray.arrived(load, 1.5 + step)


def test_what_a_way_had_when_it_failed_makes_its_rest_no_longer() -> None:
    spray = make_spray()
    for _ in range(8):
        spray.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0)
    first = [load for load in hand_out(spray, 0.0) if load.way == 0]
    for load in first:
        assert spray.failed(load, 0.1)
    assert spray.ways[0].rest.times == 1
    assert spray.ways[0].failures == 1
    assert not spray.ways[0].rest.now(0.7)


def test_a_peer_that_no_way_reaches_is_given_up_with_all_that_waits() -> None:
    spray = make_spray()
    for _ in range(50):
        spray.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0)
    now_s, ended = 0.0, 0
    while not spray.hopeless(now_s):
        now_s += 0.01
        for load in hand_out(spray, now_s):
            ended += not spray.failed(load, now_s + 0.001)
    assert now_s < 0.1
    assert len(spray.drain()) + ended == 50
    assert spray.waiting == 0
    spray.check()


def test_one_success_and_a_peer_is_not_given_up() -> None:
    spray = make_spray()
    spray.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0)
    for step in range(3):
        (load,) = hand_out(spray, step / 100)
        assert spray.failed(load, step / 100)
    (load,) = hand_out(spray, 0.05)
    spray.arrived(load, 0.06)
    spray.put("y", MIB, NEAR_BOTH, FOREGROUND, 0.07)
    (load,) = hand_out(spray, 0.07)
    assert spray.failed(load, 0.08)
    assert not spray.hopeless(0.08)


def test_others_traffic_on_a_nic_counts_but_cannot_block_it() -> None:
    shared = [NicLoad("a"), NicLoad("b")]
    other: Spray[str] = Spray(shared)
    for _ in range(4):
        other.put("stuck", 8 * MIB, (0, 9), FOREGROUND, 0.0)
    hand_out(other, 0.0)
    ours: Spray[str] = Spray(shared)
    for _ in range(20):
        ours.put("x", MIB, NEAR_BOTH, FOREGROUND, 0.0)
    assert [load.way for load in hand_out(ours, 0.0)].count(0) >= 2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), ways=st.integers(1, 4))
def test_whatever_happens_every_slice_ends_once_and_the_counts_agree(
    data: st.DataObject, ways: int
) -> None:
    spray = make_spray(ways)
    now_s, put, ended = 0.0, 0, 0
    alive: list[Load[str]] = []
    for _ in range(data.draw(st.integers(5, 60))):
        now_s += data.draw(st.sampled_from([0.0, 0.0001, 0.2, 3.0]))
        what = data.draw(st.sampled_from(["put", "next", "arrive", "fail", "echo", "drop", "late"]))
        on_ways = [load for load in alive if load.way >= 0]
        if what == "put":
            ranks = tuple(data.draw(st.integers(0, 2)) for _ in range(ways))
            size = data.draw(st.integers(1, 8 * MIB))
            priority = data.draw(st.sampled_from(list(Priority)))
            alive.append(spray.put("x", size, ranks, priority, now_s))
            put += 1
        elif what == "next":
            hand_out(spray, now_s)
        elif what == "late":
            for index in spray.overdue(now_s):
                for load in list(spray.ways[index].carried):
                    spray.taken_back(load, now_s)
        elif what == "drop" and alive:
            load = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            spray.dropped(load)
            ended += 1
        elif on_ways:
            load = data.draw(st.sampled_from(on_ways))
            if what == "arrive":
                spray.arrived(load, now_s)
            if what == "arrive" or not spray.failed(load, now_s, collateral=what == "echo"):
                alive.remove(load)
                ended += 1
        spray.check()
    drained = spray.drain()
    for load in drained:
        alive.remove(load)
    assert all(load.way >= 0 for load in alive)
    assert put == ended + len(drained) + len(alive)
    spray.check()
