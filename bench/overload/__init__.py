"""Goodput beyond capacity, with and without admission: `python -m bench.overload [--quick]`."""
