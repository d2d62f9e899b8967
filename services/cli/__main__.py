"""`python -m services.cli` is `moonpool`."""

import sys

from services.cli.main import main

sys.exit(main())
