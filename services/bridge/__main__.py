"""`python -m services.bridge`."""

import sys

from moonpool.runtime import run_service
from moonpool.settings import BridgeSettings
from services.bridge.shell import serve

if __name__ == "__main__":
    sys.exit(run_service("foreign", BridgeSettings, serve))
