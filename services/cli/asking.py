"""One question to the mesh over NATS, as several verbs ask it."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from services.cli.options import add_mesh_options, running_mesh

if TYPE_CHECKING:
    from moonpool.messages import Subjects

TIMEOUT_S = 5.0

M = TypeVar("M", bound=msgspec.Struct)


def add_nats_options(parser: argparse.ArgumentParser) -> None:
    """Which mesh is meant: the one that runs here unless a server is named."""
    add_mesh_options(parser)
    parser.add_argument("--nats", help="server of another mesh, like nats://HOST:4222")
    parser.add_argument("--mesh", help="subject prefix of another mesh (default mp)")


def nats_of(given: argparse.Namespace) -> tuple[str, str]:
    """(server, subject prefix). Raises MeshRefused when none is named and no mesh runs here."""
    if given.nats:
        return given.nats, given.mesh or "mp"
    record = running_mesh(given)
    return record.nats_url, given.mesh or record.mesh


async def ask(
    nats_url: str,
    prefix: str,
    subject_of: "Callable[[Subjects], str]",
    message: msgspec.Struct,
    kind: type[M],
    whom: str = "conductor",
) -> M:
    """The reply. Raises PeerError when nobody, or no server, answers; else what was answered."""
    import asyncio

    from moonpool.bus import NatsBus, NoResponder
    from moonpool.messages import PeerError, Subjects
    from moonpool.messages.codec import decode, encode

    try:
        async with asyncio.timeout(TIMEOUT_S):
            bus = await NatsBus.connect(nats_url, name="moonpool-cli")
    except TimeoutError as error:
        raise PeerError(f"{nats_url} does not answer") from error
    try:
        subject = subject_of(Subjects(prefix))
        return decode(await bus.request(subject, encode(message), TIMEOUT_S), kind)
    except NoResponder as error:
        raise PeerError(f"no {whom} answers at {nats_url}: is it starting, or gone?") from error
    finally:
        await bus.close()
