"""`python -m services.conductor.simulate WHAT ...`: simulate a part of the mesh."""

import argparse
import sys

from services.conductor.simulate.cache import program as cache
from services.conductor.simulate.cache import tiers_program as tiers
from services.conductor.simulate.paper import program as paper
from services.conductor.simulate.plan import program as plan
from services.conductor.simulate.serve import program as serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate")
    parts = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for part in (cache, tiers, serve, paper, plan):
        part.add(parts)
    given = parser.parse_args()
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
