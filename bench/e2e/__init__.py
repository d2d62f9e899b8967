"""A real mesh against the engine called in-process: `python -m bench.e2e [--quick] [--json]`."""
