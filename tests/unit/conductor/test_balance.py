"""The balancer: copies that pay, at a bounded rate, and never to and fro."""

from collections.abc import Sequence

from moonpool.messages.ids import OwnerId
from services.conductor.balance import (
    BURST_S,
    COLD_S,
    HOLD_S,
    ORDERS_MAX,
    REST_S,
    SPAN,
    Balancer,
    Fetch,
    Order,
    Site,
)
from services.conductor.bandwidth import TransferPredictor
from services.conductor.reuse import Reuse, Step
from services.conductor.topology import Distance, Spot
from tests.unit.conductor.driver import BLOCK_BYTES, chain_keys

FAR, NEAR = Spot("h1", "", "z1"), Spot("h2", "", "z2")
BLOCKS = 4 * SPAN


class Play:
    """One far node that holds a prompt, one near node with room, and a reader there."""

    def __init__(self, rate: float = 1e8, room: float = 1.0) -> None:
        self.transfers = TransferPredictor()
        self.learn("far", "reader", Distance.ZONES, rate)
        self.learn("far", "near", Distance.ZONES, rate)
        self.learn("near", "reader", Distance.HOST, 4e9)
        self.balancer = Balancer(self.transfers)
        self.sites = [Site("far", FAR, 0.5), Site("near", NEAR, room)]
        self.copied: set[bytes] = set()
        self.now_s = 0.0
        self.orders: list[Order] = []

    def learn(self, source: str, target: str, apart: Distance, rate: float) -> None:
        for _ in range(10):
            size = 64 << 20
            self.transfers.learn(source, target, "dram", apart, size, size / rate, 0.0)

    def holders(self, keys: bytes) -> Sequence[Site]:
        return self.sites if keys in self.copied else self.sites[:1]

    def plan(self, owner: str = "far", compute_s: float = 0.0, chain: str = "c") -> None:
        block_s = BLOCK_BYTES / (1e8 if owner == "far" else 4e9)
        load_s = BLOCKS * block_s
        reuse = Reuse(BLOCKS, BLOCKS, load_s, compute_s, max(load_s, compute_s))
        steps = [Step(0, BLOCKS, OwnerId(owner), "dram", block_s, 0.01)]
        keys = chain_keys(chain, 0, BLOCKS)
        fetch = Fetch("t", keys, steps, reuse, BLOCK_BYTES, "reader", NEAR)
        self.balancer.note(fetch, self.sites, self.now_s)

    def wait(self, seconds: float, plans_per_s: int = 0, owner: str = "far") -> list[Order]:
        """Orders of these seconds; those that copy are carried out at once."""
        found: list[Order] = []
        for _ in range(round(seconds)):
            for _ in range(plans_per_s):
                self.plan(owner)
            self.now_s += 1.0
            orders = self.balancer.orders(self.sites, self.holders, self.now_s)
            self.balancer.check()
            self.copied |= {order.keys for order in orders if order.target}
            found += orders
        return found


def test_what_is_fetched_from_afar_again_and_again_comes_near_after_a_while() -> None:
    play = Play()
    assert play.wait(HOLD_S, plans_per_s=2) == []
    orders = play.wait(30.0, plans_per_s=2)
    assert len(orders) == BLOCKS // SPAN
    assert {(o.source, o.target, o.tenant) for o in orders} == {("far", "near", "t")}
    assert {o.keys for o in orders} == {
        chain_keys("c", at, at + SPAN) for at in range(0, BLOCKS, SPAN)
    }
    assert play.wait(60.0, plans_per_s=2, owner="near") == []


def test_what_is_fetched_now_and_then_or_hides_behind_compute_stays_where_it_is() -> None:
    rare = Play()
    for _ in range(20):
        rare.plan()
        assert rare.wait(60.0) == []
    hidden = Play()
    for _ in range(60):
        hidden.plan(compute_s=100.0)
        assert hidden.wait(1.0) == []
        hidden.now_s += 4.0


def test_a_burst_that_is_over_before_the_hold_copies_nothing() -> None:
    play = Play()
    for _ in range(6):
        play.plan()
    assert play.wait(300.0) == []


def test_nothing_is_copied_to_where_there_is_no_room() -> None:
    play = Play(room=0.1)
    assert play.wait(60.0, plans_per_s=2) == []
    assert play.balancer.stats()["balance_wishes"] == 0


def test_sending_is_bounded_however_much_is_wished_for() -> None:
    play = Play()
    sent = 0
    for second in range(60):
        for number in range(20):
            play.plan(chain=f"c{number}")
        sent += len(play.wait(1.0))
        took_s = SPAN * BLOCK_BYTES / 1e8
        assert sent * took_s <= BURST_S + 0.05 * (second + 2)
    assert sent > 20


def test_a_copy_that_nobody_reads_goes_once_and_is_not_made_again_soon() -> None:
    play = Play()
    play.wait(40.0, plans_per_s=2)
    assert len(play.copied) == BLOCKS // SPAN
    assert play.wait(COLD_S - 60.0) == []
    play.plan("near")
    assert play.wait(COLD_S - 60.0) == [], "it was read meanwhile"
    thinned = play.wait(120.0)
    assert {(o.source, o.target) for o in thinned} == {("near", "")}
    assert len(thinned) == BLOCKS // SPAN <= ORDERS_MAX
    play.copied.clear()
    assert play.wait(REST_S - 130.0, plans_per_s=2) == [], "it rests"
    assert len(play.wait(200.0, plans_per_s=2)) == BLOCKS // SPAN


def test_the_last_copy_known_of_is_left_alone_and_a_site_that_left_is_forgotten() -> None:
    play = Play()
    play.wait(40.0, plans_per_s=2)
    play.copied.clear()  # only one holds them, whoever that is
    assert play.wait(COLD_S + 10.0) == []
    other = Play()
    other.wait(40.0, plans_per_s=2)
    del other.sites[1]
    other.copied.clear()
    other.wait(1.0)
    assert other.balancer.stats()["balance_copies"] == 0


def test_memory_is_bounded() -> None:
    play = Play()
    for number in range(3000):
        play.plan(chain=f"c{number}")
    play.balancer.check()
