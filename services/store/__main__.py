"""`python -m services.store`: one store node, set up by `MOONPOOL_*` variables."""

import sys

from moonpool.runtime import run_service
from moonpool.settings import StoreSettings
from services.store.shell import serve

if __name__ == "__main__":
    sys.exit(run_service("store", StoreSettings, serve))
