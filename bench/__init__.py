"""Side-by-side benchmarks, each one command: `python -m bench.NAME [--quick] [--json]`."""
