"""A store node: the only authority over its own bytes, whatever indexes elsewhere believe.

`core.py` and its neighbours decide (pure), `shell.py` serves; `python -m services.store` starts it.
Spoken to by message only, mostly through `moonpool.client`. It never talks to other nodes.
"""
