"""Metrics and logs of one process: counted cheaply, shown to Prometheus, NATS and people.

Every service uses it; the metrics that exist are listed in `names`. It sends nothing itself.
"""

from moonpool.telemetry import names
from moonpool.telemetry.logs import request_scope, setup_logging
from moonpool.telemetry.metrics import Family, Metrics
from moonpool.telemetry.series import Counter, Gauge, Histogram

__all__ = [
    "Counter",
    "Family",
    "Gauge",
    "Histogram",
    "Metrics",
    "names",
    "request_scope",
    "setup_logging",
]
