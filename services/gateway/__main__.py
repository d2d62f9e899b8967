"""`python -m services.gateway`."""

import os
import sys

# transformers imports torch wherever it finds it: 180 MB and a second that a tokenizer has no use
# for. A None entry is Python's own way to say that a module cannot be imported.
sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would advise to install torch

from moonpool.runtime import run_service  # noqa: E402
from moonpool.settings import GatewaySettings  # noqa: E402
from services.gateway.shell import run_gateway  # noqa: E402


def main() -> int:
    """Exit status as `run_service` gives it."""
    return run_service("gateway", GatewaySettings, run_gateway)


if __name__ == "__main__":
    sys.exit(main())
