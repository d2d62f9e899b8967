"""Continues answers: holds places, verifies KV that arrives, and runs the continuous batch. Its core
is `moonpool.instance.core`; this folder is the process around it."""
