"""How compute threads wait for one another. Importing this settles it, if torch is not loaded yet.

A layer has about ten parallel regions, each a few tens of microseconds. GNU OpenMP lets a thread
that is done spin for milliseconds; when others need the cores, it spins in the place of the very
thread it waits for, and a decode step of 40 ms takes seconds. A short spin and then sleep costs
nothing on idle cores (measured: 26 and 34 ms at batch 1 and 8, as before) and a factor of two
instead of a hundred on busy ones.
"""

import os

SPINS = "10000"  # about 20 us

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
