"""Renews the lock files from pyproject.toml: `make lock`. Needs `uv` on the path.

Torch is left out (its build depends on the machine); what it needs is in the lock, as resolved
against its CPU build. `requirements.lock` is what a mesh runs on, `requirements-dev.lock` holds
the tools of `make check` and `make test` as well.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch_build

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {"requirements.lock": ["build"], "requirements-dev.lock": ["build", "dev"]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="newest versions that fit")
    upgrade = parser.parse_args().upgrade
    uv = shutil.which("uv")
    if uv is None:
        print("make lock: needs uv (pip install uv)", file=sys.stderr)
        return 1
    pin = (ROOT / "requirements-torch.txt").read_text().splitlines()[-1]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as override:
        override.write(f"{pin}+cpu\n")
        override.flush()
        for name, groups in GROUPS.items():
            command = [uv, "pip", "compile", "pyproject.toml", "--quiet", "-o", name]
            command += [each for group in groups for each in ("--group", group)]
            command += ["--override", override.name, "--generate-hashes", "--python", "3.11"]
            command += ["--no-emit-package", "torch", "--no-emit-index-url"]
            command += ["--no-emit-find-links", "--no-header"]
            command += ["--upgrade"] if upgrade else []
            links = os.environ.get("PIP_FIND_LINKS") or f"{torch_build.CPU_INDEX}/torch/"
            environment = {**os.environ, "UV_FIND_LINKS": links}
            subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
