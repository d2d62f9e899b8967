"""Processes of a local mesh never outlive it."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from services.cli.mesh import Child
from services.cli.mesh.reaping import Reaper
from tests.support.until import until

FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER


def make_child(folder: Path, code: str = FOREVER) -> Child:
    command = [sys.executable, "-c", code]
    return Child("some-1", "some", command, dict(os.environ), folder / "some.log")


async def started(child: Child) -> Child:
    child.start()
    await until(lambda: "up" in child.log_tail(), saying="the child says that it is up")
    return child


async def test_stopping_a_polite_process_takes_no_grace(tmp_path: Path) -> None:
    child = await started(make_child(tmp_path))
    async with asyncio.timeout(5.0):
        await child.stop(grace_s=60.0)
    assert child.returncode == -signal.SIGTERM
    assert not child.running


async def test_stopping_a_deaf_process_kills_it_after_the_grace(tmp_path: Path) -> None:
    child = await started(make_child(tmp_path, DEAF))
    await child.stop(grace_s=0.2)
    assert child.returncode == -signal.SIGKILL


async def test_stopping_a_paused_process_wakes_it_to_hear(tmp_path: Path) -> None:
    child = await started(make_child(tmp_path))
    child.signal(signal.SIGSTOP)
    await child.stop(grace_s=10.0)
    assert child.returncode == -signal.SIGTERM


async def test_stopping_takes_the_processes_it_started_along(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}])\n"
        "print(child.pid, flush=True)\nchild.wait()"
    )
    child = await started(make_child(tmp_path, code))
    grandchild = int(next(line for line in child.log_tail().split() if line.isdigit()))
    await child.stop(grace_s=5.0)
    await until(lambda: not psutil.pid_exists(grandchild) or is_zombie(grandchild))


async def test_a_process_can_be_started_again(tmp_path: Path) -> None:
    child = await started(make_child(tmp_path))
    before = child.pid
    child.signal(signal.SIGKILL)
    await child.wait(5.0)
    child.start()
    assert child.pid != before
    assert child.starts == 2
    await child.stop(grace_s=5.0)


async def test_stopping_twice_or_before_the_start_does_nothing(tmp_path: Path) -> None:
    child = make_child(tmp_path)
    await child.stop(grace_s=1.0)
    child.start()
    await child.stop(grace_s=5.0)
    await child.stop(grace_s=5.0)
    assert not child.running


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_children_and_files_go_when_the_launcher_is_killed(tmp_path: Path, end: int) -> None:
    leftover = tmp_path / "run"
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        textwrap.dedent(f"""
        import asyncio, os, sys
        from pathlib import Path
        from services.cli.mesh import Child
        from services.cli.mesh.reaping import Reaper

        async def main():
            reaper = Reaper()
            run = Path({str(leftover)!r})
            run.mkdir()
            reaper.remove_at_death(run)
            command = [sys.executable, "-c", {DEAF!r}]
            child = Child("some-1", "some", command, dict(os.environ), Path({str(tmp_path)!r}, "l"))
            child.start()
            reaper.started(child.pid)
            print(child.pid, reaper.pid, flush=True)
            await child.wait()

        asyncio.run(main())
        """)
    )
    with subprocess.Popen(
        [sys.executable, str(launcher)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(each) for each in process.stdout.readline().split()]
        process.send_signal(end)
        process.wait(timeout=10)
    _, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 10)
    assert not [p for p in alive if not is_zombie(p.pid)]
    assert not leftover.exists()


def test_a_dismissed_reaper_removes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    reaper = Reaper()
    reaper.remove_at_death(kept)
    reaper.dismiss()
    reaper.dismiss()
    assert kept.exists()


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
