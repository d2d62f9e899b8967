"""The examples in docs do what they say."""

import asyncio
import os
import sys
from pathlib import Path

from tests.support.until import until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples/transfer"


async def _start(name: str, file: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        str(file),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "libs")},
    )


async def test_an_owner_and_an_asker_in_two_processes(tmp_path: Path) -> None:
    file = tmp_path / "grant.json"
    owner = await _start("owner.py", file)
    try:
        await until(file.exists)
        asker = await _start("asker.py", file)
        said, _ = await asyncio.wait_for(asker.communicate(), 20.0)
        assert said.decode().splitlines() == ["read hello", "seen in place world"]
        assert asker.returncode == 0
        said, _ = await asyncio.wait_for(owner.communicate(b""), 20.0)
        assert said.decode().splitlines() == ["offered", "it now says world"]
        assert owner.returncode == 0
    finally:
        if owner.returncode is None:
            owner.kill()
            await owner.wait()
