"""Machines: what the simulator assumes of hardware and model, read from TOML."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

MACHINES_DIR = Path(__file__).parent / "machines"


class BadMachine(Exception):
    """A machine file that cannot be used; says why."""


@dataclass(frozen=True, slots=True)
class PrefillCosts:
    """seconds = start_s + token_s (n - p) + pair_s (n^2 - p^2) + reload of p tokens."""

    start_s: float
    token_s: float
    pair_s: float
    reload_bytes_per_s: float
    cache_tokens: int  # KV pool of one instance
    chunk_tokens: int  # between chunks another prompt may come first


@dataclass(frozen=True, slots=True)
class DecodeCosts:
    """seconds per step = start_s + sequence_s batch + context_s tokens of all contexts."""

    start_s: float
    sequence_s: float
    context_s: float
    slots: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """One node's network, each way."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """A store node beside each prefill that keeps on disk what the pool lets go; 0 tokens: none."""

    nvme_tokens: int = 0
    nvme_bytes_per_s: float = 5e9
    nvme_latency_s: float = 2e-4


@dataclass(frozen=True, slots=True)
class Prices:
    """Per hour, in one unit of money."""

    prefill: float
    decode: float
    dram_gb: float
    nvme_gb: float


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of hardware running one model."""

    name: str
    kv_bytes_per_token: int
    block_tokens: int
    noise: float  # relative deviation of compute times
    prefill: PrefillCosts
    decode: DecodeCosts
    link: LinkCosts
    price: Prices
    node: NodeCosts = NodeCosts()

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.kv_bytes_per_token

    def prefill_s(self, tokens: int, cached: int) -> float:
        """Seconds to compute `tokens` of which `cached` have their KV in the pool."""
        return self.prefill.start_s + self.span_s(cached, tokens) + self.reload_s(cached)

    def span_s(self, start: int, end: int) -> float:
        """Seconds to compute tokens `[start, end)` after all before them."""
        costs = self.prefill
        return costs.token_s * (end - start) + costs.pair_s * (end * end - start * start)

    def reload_s(self, cached: int) -> float:
        return cached * self.kv_bytes_per_token / self.prefill.reload_bytes_per_s

    def step_s(self, sequences: int, context_tokens: float) -> float:
        costs = self.decode
        return costs.start_s + costs.sequence_s * sequences + costs.context_s * context_tokens


_PARTS = {
    "prefill": PrefillCosts,
    "decode": DecodeCosts,
    "link": LinkCosts,
    "price": Prices,
    "node": NodeCosts,
}


def machine_names() -> list[str]:
    """Machines that come with the package."""
    return sorted(path.stem for path in MACHINES_DIR.glob("*.toml"))


def load_machine(name_or_path: str) -> Machine:
    """A machine by name, or from a file. Raises BadMachine."""
    path = MACHINES_DIR / f"{name_or_path}.toml"
    if not path.exists():
        path = Path(name_or_path)
    try:
        given = tomllib.loads(path.read_text())
    except OSError:
        names = ", ".join(machine_names())
        raise BadMachine(f"{name_or_path!r} is no file, and none of {names}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadMachine(f"{path}: {error}") from None
    return _machine(given, path)


def _machine(given: dict[str, Any], path: Path) -> Machine:
    parts = {}
    for name, kind in _PARTS.items():
        table = given.pop(name, {})
        wanted = {field.name for field in fields(kind)}
        if unknown := sorted(set(table) - wanted):
            raise BadMachine(f"{path}: [{name}] has no {', '.join(unknown)}")
        try:
            parts[name] = kind(**table)
        except TypeError as error:
            raise BadMachine(f"{path}: [{name}] {error}") from None
        for field, value in table.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise BadMachine(f"{path}: [{name}] {field} is no number of at least 0")
    try:
        machine = Machine(**given, **parts)
    except TypeError as error:
        raise BadMachine(f"{path}: {error}") from None
    if machine.block_tokens < 1 or machine.kv_bytes_per_token < 1 or machine.noise < 0:
        raise BadMachine(f"{path}: block_tokens and kv_bytes_per_token are at least 1")
    return machine
