"""The simulated mesh with the background balancer: the conductor's own, carried out on models.

The pools of prefills stand for the memory of nodes, as in the paper, so copies go from pool to
pool. A copy is one flow among the others. A stretch that is one too many stays until its pool needs
the room; pools evict by their own order here, so that such an order changes nothing.
"""

from services.conductor.balance import Balancer, Order, Site
from services.conductor.simulate.serve.machine import Machine
from services.conductor.simulate.serve.setup import Setup
from services.conductor.simulate.serve.traffic import Traffic
from services.conductor.simulate.serve.world import World

EVERY_S = 1.0


class BalancedWorld(World):
    """One run with copies made and thinned in the background."""

    def __init__(self, setup: Setup, machine: Machine, traffic: Traffic) -> None:
        super().__init__(setup, machine, traffic)
        self.core.balancer = Balancer(self.core.transfers, tier="hbm")
        self.core.sites = self._sites
        self._names = {
            key: block for ask in traffic.asks for block, key in self._keys_of(ask.blocks)
        }
        self.copied_blocks = self.thinned_blocks = 0
        self.agenda.after(EVERY_S, self._balance)

    def _keys_of(self, blocks: list[int]) -> list[tuple[int, bytes]]:
        return [(block, self.traffic.packed([block])) for block in blocks]

    def _sites(self) -> list[Site]:
        sites = []
        for id, prefill in self.prefills.items():
            member = self.core.fleet.get(id)
            assert member is not None
            cache = prefill.cache
            room = 1.0 - len(cache.here) / max(1, cache.blocks_max)
            sites.append(Site(id, member.spot, room))
        return sites

    def _balance(self) -> None:
        for order in self.core.balance(self.agenda.now_s):
            self._carry_out(order)
        self.agenda.after(EVERY_S, self._balance)

    def _carry_out(self, order: Order) -> None:
        blocks = [self._names[order.keys[at : at + 16]] for at in range(0, len(order.keys), 16)]
        source = self.prefills[order.source].cache
        if not order.target:
            self.thinned_blocks += len(blocks)
            return
        if not source.holds(blocks):
            return
        target = self.prefills[order.target].cache
        size_bytes = len(blocks) * self.machine.block_bytes
        self.copied_blocks += len(blocks)

        def there() -> None:
            self._demote(order.target, target.add(blocks, self.agenda.now_s))

        self.links.move(order.source, order.target, size_bytes, there)
