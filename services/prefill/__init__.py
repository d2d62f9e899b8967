"""Computes prompts: fetches what is reused, computes the rest in chunks, and sends KV on, layer by
layer. Its core is `moonpool.instance.core`; this folder is the process around it."""
