"""Reads and writes what an owner offers: python asker.py /tmp/grant.json"""

import asyncio
import sys
from pathlib import Path

import msgspec

from moonpool.messages.segments import RegionGrant
from moonpool.transfer import BadTransfer, TransferEngine


async def main(run_dir: Path, grant: RegionGrant) -> None:
    engine = await TransferEngine.start("asker", host_id="this-machine", run_dir=run_dir)
    remote = engine.open(grant)
    pool = engine.make_pool(64 << 10)
    with pool.take(5) as buffer:
        await engine.submit([buffer.read(remote)], deadline_s=5.0, checksum=True)
        print("read", bytes(buffer.view).decode(), flush=True)
        buffer.view[:] = b"world"
        await engine.submit([buffer.write(remote)], deadline_s=5.0)
    try:
        with await engine.map_remote(remote) as mapped:
            seen = bytes(mapped.view[:5]).decode()
            mapped.check()  # only now does what was seen count
            print("seen in place", seen, flush=True)
    except BadTransfer as error:
        print("not on one host:", error, flush=True)
    await engine.close()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    asyncio.run(main(file.parent, msgspec.json.decode(file.read_bytes(), type=RegionGrant)))
