"""`python -m services.exporter`."""

import sys

from moonpool.runtime import run_service
from moonpool.settings import ExporterSettings
from services.exporter.shell import serve

if __name__ == "__main__":
    sys.exit(run_service("exporter", ExporterSettings, serve))
