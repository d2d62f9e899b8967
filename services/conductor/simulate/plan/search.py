"""The search: the cheapest mesh that meets the promises, by simulation.

Cost counts prefills, decodes and the memory and disk of their pools. For each size of pool the
fewest prefills are found with decodes in plenty, then the fewest decodes with those prefills, and
one of each is traded against the other once. More nodes never make it worse, so both are found by
halving.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from services.conductor.simulate.serve.machine import Machine, NodeCosts
from services.conductor.simulate.serve.outcome import Result
from services.conductor.simulate.serve.setup import Setup
from services.conductor.simulate.serve.traffic import Traffic
from services.conductor.simulate.serve.world import World


@dataclass(frozen=True, slots=True)
class Goal:
    """What the mesh must do."""

    slo_ttft_s: float
    slo_tbt_s: float
    met_share: float  # of all requests, refused ones included


@dataclass(frozen=True, slots=True)
class Size:
    """One mesh. The pools hold `dram_gb` per prefill in memory; `nvme_gb` lie behind it."""

    prefills: int
    decodes: int
    dram_gb: float
    nvme_gb: float = 0.0

    def cost(self, machine: Machine) -> float:
        """Per hour."""
        price = machine.price
        pools = self.dram_gb * price.dram_gb + self.nvme_gb * price.nvme_gb
        return self.prefills * (price.prefill + pools) + self.decodes * price.decode


@dataclass(frozen=True, slots=True)
class Found:
    """A mesh that meets the goal, and how well."""

    size: Size
    met_share: float
    goodput_per_s: float
    cost: float


class Search:
    """Runs meshes; remembers those that ran."""

    def __init__(
        self,
        machine: Machine,
        traffic: Traffic,
        goal: Goal,
        nodes_max: int,
        tell: Callable[[str], None],
        seed: int = 1,
    ) -> None:
        self._machine = machine
        self._traffic = traffic
        self._goal = goal
        self._nodes_max = nodes_max
        self._tell = tell
        self._seed = seed
        self._known: dict[Size, Found] = {}

    def best(self, pools: Sequence[tuple[float, float]]) -> list[Found]:
        """The cheapest mesh for each (GB of memory, GB of disk) per prefill that can meet the goal,
        cheapest first; empty when none can."""
        found = [self._for_pool(dram, nvme) for dram, nvme in pools]
        return sorted((each for each in found if each), key=lambda each: each.cost)

    def _for_pool(self, dram_gb: float, nvme_gb: float) -> Found | None:
        top = Size(self._nodes_max, self._nodes_max, dram_gb, nvme_gb)
        if not self._meets(top):
            return None
        prefills = self._fewest(lambda n: replace(top, prefills=n))
        decodes = self._fewest(lambda n: replace(top, prefills=prefills, decodes=n))
        choices = [replace(top, prefills=prefills, decodes=decodes)]
        if prefills < self._nodes_max:  # one prefill more may save decodes
            more = replace(top, prefills=prefills + 1)
            choices.append(replace(more, decodes=self._fewest(lambda n: replace(more, decodes=n))))
        ran = [self._run(size) for size in choices]
        return min(ran, key=lambda each: each.cost)

    def _fewest(self, size_of: Callable[[int], Size]) -> int:
        low, high = 1, self._nodes_max
        while low < high:
            middle = (low + high) >> 1
            if self._meets(size_of(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def _meets(self, size: Size) -> bool:
        return self._run(size).met_share >= self._goal.met_share

    def _run(self, size: Size) -> Found:
        if size not in self._known:
            result = World(self._setup(size), self._sized(size), self._traffic).run()
            self._known[size] = self._found(size, result)
            met = self._known[size].met_share
            self._tell(f"{size.prefills}P + {size.decodes}D, {size.dram_gb:g} GB: {met:.1%} met")
        return self._known[size]

    def _found(self, size: Size, result: Result) -> Found:
        met = sum(map(result.met, result.accepted))
        share = met / max(1, len(result.outcomes))
        return Found(size, share, met / max(1e-9, result.span_s), size.cost(self._machine))

    def _setup(self, size: Size) -> Setup:
        goal = self._goal
        return Setup(
            size.prefills,
            size.decodes,
            slo_ttft_s=goal.slo_ttft_s,
            slo_tbt_s=goal.slo_tbt_s,
            seed=self._seed,
        )

    def _sized(self, size: Size) -> Machine:
        """The machine with pools of that size."""
        machine = self._machine
        per_token = machine.kv_bytes_per_token
        dram = int(size.dram_gb * 1e9 / per_token)
        nvme = int(size.nvme_gb * 1e9 / per_token)
        node: NodeCosts = replace(machine.node, nvme_tokens=nvme)
        prefill = replace(machine.prefill, cache_tokens=max(machine.block_tokens, dram))
        return replace(machine, prefill=prefill, node=node)
