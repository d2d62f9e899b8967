"""The command line `moonpool`: starts a mesh on this machine, talks to one, looks into one.

It is the one place that may start any service, by command line; it imports none of them.
"""

from services.cli.program import main

__all__ = ["main"]
