"""The conductor: sends each request to where its KV already is, or says no before any work.

Gateways ask it for plans; instances and nodes tell it what they hold and how busy they are. The
core (all but `shell.py`, `fetcher.py`, `prober.py` and `__main__.py`) has no I/O and no clock, so
that the simulator runs the very code that serves. It never touches a block's bytes.
"""
