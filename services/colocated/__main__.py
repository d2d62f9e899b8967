"""`python -m services.colocated`."""

import sys

from services.colocated.shell import main

if __name__ == "__main__":
    sys.exit(main())
