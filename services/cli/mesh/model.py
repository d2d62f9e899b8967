"""Fetches the model before the services start, so that one process does it and shows progress."""

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

from services.cli.mesh.errors import MeshRefused

_FETCH = "import sys; from moonpool.engine.fetch import main; sys.exit(main())"
_ELAPSED = re.compile(r"^\[ *[\d.]+ s\] ")


async def fetch_model(model: str, progress: Callable[[str], None]) -> Path:
    """Its folder. Raises MeshRefused with the reason when there is no such model."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _FETCH, model),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    last = ""
    try:
        async for raw in process.stderr:
            last = _ELAPSED.sub("", raw.decode(errors="replace").rstrip())
            if not last.startswith("error: "):
                progress(last)
        output = await process.stdout.read()
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise MeshRefused(f"model {model!r}: {last.removeprefix('error: ')}")
    return Path(output.decode().splitlines()[-1])
