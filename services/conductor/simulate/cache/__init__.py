"""Caches on traces: token hit rates of the very eviction policies that serve, and of Belady's
optimum. Started by the command line; it reads a trace and prints figures."""
