"""Options and lookups that several verbs share."""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.cli.mesh import MeshRecord, StateFolder

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

NO_MESH = "no mesh runs here; start one (moonpool up), or name a gateway: --url http://HOST:PORT"


def add_verb(
    verbs: "Verbs",
    name: str,
    help_text: str,
    examples: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """A parser for `moonpool NAME`, whose help ends with `examples`."""
    parser = verbs.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_mesh_options(parser: argparse.ArgumentParser) -> None:
    """Which local mesh is meant."""
    parser.add_argument("--name", default="default", help="which mesh of this machine")
    parser.add_argument(
        "--state-dir", type=Path, help="its folder (default: ~/.local/state/moonpool/NAME)"
    )


def add_url_options(parser: argparse.ArgumentParser) -> None:
    """Which gateway is meant: that of the local mesh unless one is named."""
    add_mesh_options(parser)
    parser.add_argument("--url", help="a gateway, like http://HOST:8080")
    parser.add_argument(
        "--key",
        default=os.environ.get("OPENAI_API_KEY", ""),
        help="API key (default: $OPENAI_API_KEY)",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for scripts")


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway and how to talk to it."""

    url: str  # without a path
    headers: dict[str, str]


def target(given: argparse.Namespace) -> Target:
    """Raises MeshRefused when no gateway is named and no mesh runs here."""
    headers = {"authorization": f"Bearer {given.key}"} if given.key else {}
    if given.url:
        return Target(given.url.rstrip("/").removesuffix("/v1"), headers)
    return Target(running_mesh(given).url, headers)


def state_folder(given: argparse.Namespace) -> "StateFolder":
    from services.cli.mesh import StateFolder, default_state_dir

    return StateFolder(given.state_dir or default_state_dir(given.name))


def running_mesh(given: argparse.Namespace) -> "MeshRecord":
    """What it wrote of itself. Raises MeshRefused when none runs."""
    from services.cli.mesh import MeshRefused

    folder = state_folder(given)
    record = folder.read() if folder.held() else None
    if record is None:
        raise MeshRefused(NO_MESH)
    return record
