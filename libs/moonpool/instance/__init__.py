"""The runtime that prefill, decode and colocated instances share.

`core.py` decides what is computed next (pure); the other files bring KV in, send it out, and keep
the engine's thread fed. Services wire it to their subjects. It never listens on HTTP and never
chooses instances: that is the gateway's and the conductor's.
"""
