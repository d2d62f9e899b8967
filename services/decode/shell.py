"""The decode process: the shared instance runtime behind this role's doors."""

from moonpool.instance.start import run_instance
from moonpool.runtime import run_service
from moonpool.settings import WorkerSettings


def main() -> int:
    """Runs until a signal; returns the exit status."""
    return run_service("decode", WorkerSettings, run_instance)
