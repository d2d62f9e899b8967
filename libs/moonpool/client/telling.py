"""What is changed while a node does not answer is told to those that do: they keep it for that one,
and it takes away what is void before it answers for any name again."""

import time
from collections.abc import Sequence

from moonpool.bus import NoResponder
from moonpool.client.errors import NoNodes, NotNoted
from moonpool.client.kit import Kit
from moonpool.client.together import all_of
from moonpool.kv import BlockKey, pack_keys
from moonpool.messages import MoonpoolError
from moonpool.messages.absence import AbsentRequest

KEYS_MAX = 4096  # per message


async def tell_absent(
    kit: Kit,
    began_s: float,
    keys: Sequence[BlockKey] = (),
    *,
    prefix: str | None = None,
    everything: bool = False,
) -> None:
    """Call it before a change that began at `began_s` (`time.monotonic`) is reported as done.
    Nothing where all nodes answer. Raises NotNoted when no node could keep it."""
    absent = kit.mesh.absent()
    if not absent:
        return
    slices = [keys[start : start + KEYS_MAX] for start in range(0, len(keys), KEYS_MAX)]
    for some in slices or ([()] if everything or prefix is not None else []):
        age_s = time.monotonic() - began_s
        request = AbsentRequest(kit.tenant, absent, pack_keys(some), prefix, everything, age_s)
        try:
            nodes = [node for node in kit.mesh.readable() if node not in absent]
        except NoNodes:
            nodes = []
        kept = await all_of([_tell(kit, node, request) for node in nodes])
        if not any(kept):
            raise NotNoted(f"{', '.join(absent)} did not answer, nor anybody who could tell later")


async def _tell(kit: Kit, node: str, request: AbsentRequest) -> bool:
    try:
        return await kit.blocks.calls.absent(node, request) > 0
    except NoResponder:
        return False
    except MoonpoolError as error:
        kit.mesh.doubt(node, error)
        return False
