"""What the gateway decides: what a request means, how its life goes on, what its text is.

Called by the shell around it. Pure: no I/O, no clock, no randomness that it was not given.
"""
