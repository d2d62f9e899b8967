"""The store beside its rivals and the machine's limits: `python -m bench.store [--quick]`."""
