"""`python -m services.prefill`."""

import sys

from services.prefill.shell import main

if __name__ == "__main__":
    sys.exit(main())
