"""Offers 1 MiB to whoever is given the grant: python owner.py /tmp/grant.json

Stop it with Ctrl-C, or by ending its input.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from moonpool.transfer import TransferEngine


async def main(file: Path) -> None:
    engine = await TransferEngine.start("owner", host_id="this-machine", run_dir=file.parent)
    region = engine.allocate(1 << 20)
    region.view[:5] = b"hello"
    grant = region.grant("rw", length=4096, ttl_s=600.0)  # the first page, for ten minutes
    await asyncio.to_thread(file.write_bytes, msgspec.json.encode(grant))
    print("offered", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await region.withdraw(grant)  # returns when nobody can touch the bytes any more
    print("it now says", bytes(region.view[:5]).decode(), flush=True)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
