"""Outlives the launcher by a moment, to clean up when it was killed with no chance to do so.

Runs as a script with the standard library alone. Reads lines from its standard input: `+PID` and
`-PID` for process groups that live or ended, `path PATH` for what to remove, `done` when there is
nothing left to do. The end of input without `done` means that the launcher died.
"""

import contextlib
import os
import shutil
import signal
import sys


def remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def main() -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    groups: set[int] = set()
    paths: list[str] = []
    for line in sys.stdin:
        text = line.rstrip("\n")
        if text == "done":
            return
        if text.startswith("path "):
            paths.append(text.removeprefix("path "))
        elif text.startswith("+"):
            groups.add(int(text))
        elif text.startswith("-"):
            groups.discard(-int(text))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for path in paths:
        remove(path)


if __name__ == "__main__":
    main()
