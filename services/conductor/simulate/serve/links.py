"""Links: every node has one way out and one way in, and all that flows there shares it evenly.

A flow gets the smaller of its shares at both ends. When flows begin or end, those that touch the
same ends are slowed down or sped up from then on.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.conductor.simulate.serve.agenda import Agenda


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way."""

    source: str
    target: str
    left_bytes: float
    done: Callable[[], None]
    rate: float = 0.0
    since_s: float = 0.0
    version: int = 0  # of the end that is on the agenda


class Links:
    """All flows between nodes."""

    def __init__(self, agenda: Agenda, bytes_per_s: float, latency_s: float) -> None:
        self._agenda = agenda
        self._default = bytes_per_s
        self._latency_s = latency_s
        self._speeds: dict[str, float] = {}
        self._out: dict[str, dict[Flow, None]] = {}
        self._in: dict[str, dict[Flow, None]] = {}
        self.moved_bytes = 0.0
        self.flows = 0

    def set_speed(self, node: str, bytes_per_s: float) -> None:
        """This node's way out and in is not like the others'."""
        self._speeds[node] = bytes_per_s

    def move(self, source: str, target: str, size_bytes: float, done: Callable[[], None]) -> None:
        """Calls `done` when all bytes are there. Within a node only the latency is paid: the way
        from memory to device is part of the prefill's own costs."""
        if source == target or size_bytes <= 0:
            self._agenda.after(self._latency_s, done)
            return
        self.flows += 1
        self.moved_bytes += size_bytes
        flow = Flow(source, target, size_bytes, done)
        self._agenda.after(self._latency_s, self._begin, flow)

    def _begin(self, flow: Flow) -> None:
        flow.since_s = self._agenda.now_s
        self._out.setdefault(flow.source, {})[flow] = None
        self._in.setdefault(flow.target, {})[flow] = None
        self._share(flow)

    def _end(self, flow: Flow, version: int) -> None:
        if version != flow.version:
            return
        del self._out[flow.source][flow]
        del self._in[flow.target][flow]
        self._share(flow)
        flow.done()

    def _share(self, changed: Flow) -> None:
        """New rates for all that share an end with `changed`."""
        now_s = self._agenda.now_s
        touched = dict(self._out[changed.source])
        touched.update(self._in[changed.target])
        for flow in touched:
            rate = min(
                self._speeds.get(flow.source, self._default) / len(self._out[flow.source]),
                self._speeds.get(flow.target, self._default) / len(self._in[flow.target]),
            )
            if rate == flow.rate:
                continue
            flow.left_bytes = max(0.0, flow.left_bytes - flow.rate * (now_s - flow.since_s))
            flow.since_s, flow.rate = now_s, rate
            flow.version += 1
            self._agenda.at(now_s + flow.left_bytes / rate, self._end, flow, flow.version)

    def check(self) -> None:
        """No end carries more than it can."""
        for side, name in ((self._out, "out"), (self._in, "in")):
            for node, flows in side.items():
                total = sum(flow.rate for flow in flows)
                limit = self._speeds.get(node, self._default)
                assert total <= limit * (1 + 1e-9), f"{node} {name}: {total} of {limit} bytes/s"
