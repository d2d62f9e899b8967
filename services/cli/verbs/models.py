"""`moonpool models`: what can be asked for."""

import argparse
import json
from typing import TYPE_CHECKING

from services.cli.options import add_json_option, add_url_options, add_verb, target

if TYPE_CHECKING:
    from services.cli.options import Verbs

EXAMPLES = """\
  moonpool models
  moonpool models --url http://10.0.0.5:8080 --json
"""


def add(verbs: "Verbs") -> None:
    parser = add_verb(verbs, "models", "list the models that a mesh serves", EXAMPLES, run)
    add_url_options(parser)
    add_json_option(parser)


def run(given: argparse.Namespace) -> int:
    from services.cli.http import get_json

    answer = get_json(target(given), "/v1/models")
    if given.json:
        print(json.dumps(answer["data"]))
        return 0
    for model in answer["data"]:
        print(model["id"])
    return 0
