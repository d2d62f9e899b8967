"""`python -m services.decode`."""

import sys

from services.decode.shell import main

if __name__ == "__main__":
    sys.exit(main())
