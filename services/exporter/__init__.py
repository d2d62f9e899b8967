"""The exporter: what all services say of themselves on NATS, as one page for Prometheus.

It listens to `mp.metrics.>` and answers `GET /metrics`; nothing on the mesh waits for it.
"""
