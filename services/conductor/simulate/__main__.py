"""`python -m services.conductor.simulate WHAT ...`: simulate a part of the mesh."""

import argparse
import sys

from services.conductor.simulate.cache import program as cache


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate")
    parts = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    cache.add(parts)
    given = parser.parse_args()
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
