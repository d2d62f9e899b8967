"""`python -m services.conductor`."""

import sys

from moonpool.runtime import run_service
from moonpool.settings import ConductorSettings
from services.conductor.shell import serve

if __name__ == "__main__":
    sys.exit(run_service("conductor", ConductorSettings, serve))
