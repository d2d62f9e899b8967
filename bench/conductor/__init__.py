"""How fast the conductor thinks: `python -m bench.conductor [--quick] [--json]`."""
