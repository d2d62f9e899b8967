"""An event loop that does not sleep while what it waits for is likely to come within microseconds.
It turns and turns, so that everything on it is looked after as it comes."""

import asyncio

from moonpool.transfer.lookout import Lookout


class Wakeful:
    """One loop's. Belongs to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lookout: Lookout) -> None:
        """`lookout`: what staying awake may cost, as any look."""
        self._loop = loop
        self._lookout = lookout
        self._awake = self._turning = False

    def stay(self, for_s: float) -> None:
        """Awake for so long, or until `came`, where that is to be had now."""
        if self._awake or not self._lookout.begin(for_s):
            return
        self._awake = True
        self._turn_on()

    def came(self) -> None:
        """What it was awake for, or the like, is there. Idempotent."""
        if self._awake:
            self._awake = False
            self._lookout.end(True)

    def _turn_on(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if not self._awake:
            return
        if self._lookout.goes_on():
            self._turn_on()
        else:
            self._awake = False
            self._lookout.end(False)
