"""Continues answers: holds places, verifies KV that arrives, runs the continuous batch. Its core
is `moonpool.instance.core`; this folder is the process around it."""
