"""Shows the core's state as metrics."""

from collections import Counter

from moonpool.telemetry import Metrics, names
from services.conductor.core import ConductorCore


class Gauges:
    """Called a few times a second; a set of labels that is no more goes to 0."""

    def __init__(self, metrics: Metrics) -> None:
        self._index = metrics.gauges(names.INDEX_BLOCKS)
        self._members = metrics.gauges(names.MEMBERS)
        self._errors = metrics.gauges(names.PREDICTION_ERROR)
        self._allowed = metrics.gauge(names.TTFT_ALLOWANCE)
        self._tiers_shown: set[str] = set()
        self._members_shown: set[tuple[str, str]] = set()

    def show(self, core: ConductorCore) -> None:
        """Brings every gauge up to date."""
        blocks = core.holdings.index.blocks_by_tier()
        self._tiers_shown |= blocks.keys()
        for tier in self._tiers_shown:
            self._index.labels(tier).set(blocks.get(tier, 0))
        members = Counter((member.role, member.shown_state) for member in core.fleet)
        self._members_shown |= members.keys()
        for role, state in self._members_shown:
            self._members.labels(role, state).set(members[(role, state)])
        for predictor in core.predictors():
            self._errors.labels(predictor.name, "0.5").set(predictor.error_p50)
            self._errors.labels(predictor.name, "0.9").set(predictor.error_p90)
        self._allowed.set(core.punctual.allowed)
