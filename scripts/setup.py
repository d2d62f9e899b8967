"""Makes `.venv` from the lock files: `make setup`. Standard library only, and safe to repeat.

Every package but torch comes from `requirements-dev.lock`, by exact version and hash. Torch comes
from `requirements-torch.txt`: the default build where there is an NVIDIA GPU, else the CPU build.
When nothing changed since the last run it returns at once.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch_build

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements-dev.lock"
TORCH_PIN = ROOT / "requirements-torch.txt"
STAMP = VENV / "moonpool-setup.json"
DISK_FREE_MIN_BYTES = 3 << 30

LIST_INSTALLED = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)


class SetupError(Exception):
    """Something a person has to do first; the text says what."""


def say(text: str) -> None:
    print(text, flush=True)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check_python() -> None:
    if sys.version_info[:2] != (3, 11):
        found = "{}.{}".format(*sys.version_info[:2])
        raise SetupError(
            f"Moonpool needs Python 3.11, and {sys.executable} is {found}. "
            "Install it (Debian 12: apt-get install python3 python3-venv) or name one: "
            "make setup PYTHON=/path/to/python3.11"
        )


def read_pins(lock: Path) -> dict[str, str]:
    """Canonical name -> version, of every `name==version` line."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(), re.MULTILINE)
    return {canonical(name): version for name, version in found}


def fingerprint(torch_choice: str) -> str:
    digest = hashlib.sha256()
    files = [LOCK, TORCH_PIN, ROOT / "pyproject.toml", *sorted(ROOT.glob("scripts/*.py"))]
    for path in files:
        digest.update(path.read_bytes())
    digest.update(f"{torch_choice} {ROOT} {torch_build.gpu_present()}".encode())
    return digest.hexdigest()


def stamped(wanted: str) -> bool:
    try:
        return bool(json.loads(STAMP.read_text())["fingerprint"] == wanted) and PYTHON.exists()
    except (OSError, ValueError, KeyError):
        return False


def make_venv() -> None:
    if PYTHON.exists():
        return
    try:
        import ensurepip  # noqa: F401
        import venv
    except ImportError as error:
        raise SetupError(
            f"Python's {error.name} module is missing. Install it: "
            "apt-get install python3.11-venv (Debian 12: python3-venv)"
        ) from error
    free = shutil.disk_usage(ROOT).free
    if free < DISK_FREE_MIN_BYTES:
        raise SetupError(
            f"{free / 2**30:.1f} GiB free on the disk of {ROOT}; "
            f"the packages need {DISK_FREE_MIN_BYTES >> 30} GiB"
        )
    say(f"making {VENV}")
    venv.create(VENV, with_pip=True)


def installed() -> dict[str, str]:
    """Canonical name -> version of what the venv holds."""
    listing = subprocess.run(
        [str(PYTHON), "-c", LIST_INSTALLED], check=True, capture_output=True, text=True
    )
    return {canonical(name): version for name, version in json.loads(listing.stdout).items()}


def pip(arguments: list[str], *, expect: int = 0) -> None:
    """Runs pip, showing one line per package (of `expect`) and everything when it fails."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    seen: list[str] = []
    collected = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line)
            text = line.strip()
            if text.startswith("Collecting "):
                collected += 1
                of = f"/{expect}" if expect else ""
                say(f"  [{collected}{of}] {text.split(' (')[0].removeprefix('Collecting ')}")
            elif text.startswith("Installing collected"):
                say("  unpacking")
    if process.returncode != 0:
        say("".join(seen[-30:]))
        raise SetupError(f"pip failed ({process.returncode}): {' '.join(command)}")


def install_locked(pins: dict[str, str]) -> None:
    have = installed()
    missing = [name for name, version in pins.items() if have.get(name) != version]
    if not missing:
        return
    say(f"installing {len(missing)} of {len(pins)} packages")
    pip(["--require-hashes", "--no-deps", "-r", str(LOCK)], expect=len(missing))


def install_torch(choice: str, pins: dict[str, str]) -> None:
    wanted = read_pins(TORCH_PIN)["torch"]
    have = installed().get("torch", "")
    build = torch_build.choose(choice, wanted, have)
    if build is None:
        return
    source = torch_build.source_for(build, wanted, PYTHON)
    if source is None:
        raise SetupError(torch_build.no_source_text(wanted))
    say(f"installing torch {wanted}, {build} build, from {source.name}")
    constraints = VENV / "moonpool-constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
    pip([*source.arguments, "-c", str(constraints)])
    probe = "import torch; print(torch.__version__, 'cuda' if torch.cuda.is_available() else 'cpu')"
    shown = subprocess.run([str(PYTHON), "-c", probe], capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        raise SetupError(f"torch was installed but does not load:\n{shown.stderr}")
    say(f"  torch {shown.stdout.strip()}")


def project_installed() -> bool:
    """True when this checkout is what the venv imports, and its command is there."""
    probe = "import moonpool, services.cli; print(moonpool.__file__)"
    asked = subprocess.run(
        [str(PYTHON), "-I", "-c", probe], capture_output=True, text=True, cwd="/", check=False
    )
    ours = asked.returncode == 0 and Path(asked.stdout.strip()).is_relative_to(ROOT)
    return ours and (VENV / "bin" / "moonpool").exists()


def install_project() -> None:
    if project_installed():
        return
    say("installing moonpool itself (editable)")
    pip(["--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    if not project_installed():
        raise SetupError(f"moonpool was installed from {ROOT} but can't be imported")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make setup", description=__doc__)
    parser.add_argument(
        "--torch",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="cpu or cuda build; auto: cuda where there is an NVIDIA GPU (make setup TORCH=...)",
    )
    choice = parser.parse_args().torch
    try:
        wanted = fingerprint(choice)
        if stamped(wanted):
            return 0
        check_python()
        make_venv()
        pins = read_pins(LOCK)
        install_locked(pins)
        install_torch(choice, pins)
        install_project()
    except SetupError as error:
        print(f"make setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make setup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    STAMP.write_text(json.dumps({"fingerprint": wanted, "pid": os.getpid()}))
    say("ready: .venv holds what the lock files say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
