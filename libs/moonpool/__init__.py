"""Moonpool's shared library: what services and outside programs import.

The ladder, lowest first; nothing imports upwards and nothing here imports `services`:
`kv` < `cache, messages, clock, settings` < `bus, transfer, engine, telemetry` < `runtime` <
`client` < `instance` < `services`.
"""

__version__ = "0.1.0"
