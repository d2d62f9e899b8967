"""`python -m services.cli` is `moonpool`."""

import sys

from services.cli.program import main

sys.exit(main())
