"""A peer in a process of its own. Prints its grant as JSON, then answers lines on stdin:

fill SEED | sum | write GRANT | quit
"""

import asyncio
import json
import sys

import msgspec
import numpy as np
import xxhash

from moonpool.messages.segments import RegionGrant
from moonpool.transfer import Op, TlsFiles, TransferEngine, TransferRequest


async def main() -> None:
    settings = json.loads(sys.argv[1])
    engine = await TransferEngine.start(
        settings["name"],
        host_id="here",
        run_dir=settings["folder"],
        listen_host=settings["host"],
        transports=tuple(settings["transports"]),
        rdma_device=settings["rdma_device"],
        tls=TlsFiles(**settings["tls"]) if settings.get("tls") else None,
    )
    region = engine.allocate(settings["length"])
    bytes_of = np.frombuffer(region.view, np.uint8)
    grant = region.grant("rw")
    _say(msgspec.json.encode(grant).decode())
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        verb, *rest = line
        if verb == "fill":
            random = np.random.default_rng(int(rest[0]))
            bytes_of[:] = random.integers(0, 256, region.length, dtype=np.uint8)
            _say("filled")
        elif verb == "sum":
            _say(xxhash.xxh3_64_hexdigest(region.view))
        elif verb == "write":
            theirs = engine.open(msgspec.json.decode(rest[0], type=RegionGrant))
            await engine.submit([TransferRequest(Op.WRITE, region, 0, theirs, 0, 4096)])
            _say("written")
        elif verb == "quit":
            break
    await engine.close()
    _say("closed")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
