"""From `python -m services.X` to a running body and back: the same start and end for all.

Exit status: 0 after SIGTERM or SIGINT, or when the body returns; 1 after an error; 2 when the
settings, or what they ask for, cannot work.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import uvloop

from moonpool.bus import NatsBus, without_password
from moonpool.messages.errors import Blame, CallerError, MoonpoolError
from moonpool.runtime.background import FATAL
from moonpool.runtime.context import ServiceContext, new_context
from moonpool.runtime.identity import new_id
from moonpool.runtime.pulse import publish_metrics
from moonpool.settings import PREFIX, CommonSettings, load_settings
from moonpool.telemetry import setup_logging

S = TypeVar("S", bound=CommonSettings)
Body = Callable[[ServiceContext[S]], Awaitable[None]]

GRACE_S = 15.0  # that a body gets to drain after the signal

EXIT_OK, EXIT_ERROR, EXIT_SETTINGS = 0, 1, 2


def run_service(
    role: str,
    settings_kind: type[S],
    body: Body[S],
    *,
    environ: Mapping[str, str] | None = None,
    argv: Sequence[str] | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Runs `body` until it returns, fails, or a signal cancels it; returns the exit status.

    The body drains in its `finally` blocks, within `grace_s`; its context's bus still works there.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments:
        return _help(role, settings_kind, asked=arguments in (["-h"], ["--help"]))
    try:
        settings = load_settings(settings_kind, os.environ if environ is None else environ)
        id = new_id(role, settings.id)
        log = setup_logging(settings.log_level, role, id)
    except (CallerError, ValueError) as error:
        print(f"{role}: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_supervise(role, id, settings, body, log, grace_s))


async def _supervise(
    role: str, id: str, settings: S, body: Body[S], log: logging.Logger, grace_s: float
) -> int:
    """Runs until done or told to stop, and turns the way it ended into an exit status."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(_live(role, id, settings, body, log), name=role)
    told = asyncio.Event()

    def stop(name: str) -> None:
        log.info("stopping" if not told.is_set() else "still stopping", extra={"signal": name})
        told.set()
        work.cancel()

    broken: list[BaseException] = []

    def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A background task that failed ends the process; the rest is only said."""
        error = context.get("exception")
        log.error("%s", context.get("message", "loop error"), exc_info=error)
        if FATAL in context and isinstance(error, BaseException):
            broken.append(error)
            told.set()
            work.cancel()

    loop.set_exception_handler(on_loop_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    waiting = loop.create_task(told.wait())
    await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    _, late = await asyncio.wait({work}, timeout=grace_s)
    if late:
        # Closing the loop would wait for the same task, or for its threads, without end.
        give_up(log, f"gave up draining after {grace_s:g} s")
    if work.cancelled():
        log.info("stopped")
        return EXIT_ERROR if broken else EXIT_OK
    return _status_of(work.exception(), log)


def give_up(log: logging.Logger, why: str) -> NoReturn:
    """Ends the process here and now, with no farewell: whatever hangs cannot hold it."""
    log.critical("%s", why)
    logging.shutdown()
    os._exit(EXIT_ERROR)


async def _live(role: str, id: str, settings: S, body: Body[S], log: logging.Logger) -> None:
    shown = ",".join(map(without_password, settings.nats_url.split(",")))
    log.info("starting", extra={"pid": os.getpid(), "nats": shown})
    bus = await NatsBus.connect(
        settings.nats_url, user=settings.nats_user, password=settings.nats_password, name=id
    )
    try:
        context = new_context(role, settings, bus, id=id, log=log)
        async with asyncio.TaskGroup() as group:
            pulse = group.create_task(publish_metrics(context))
            try:
                await body(context)
            finally:
                pulse.cancel()
    finally:
        await bus.close()


def _status_of(error: BaseException | None, log: logging.Logger) -> int:
    """Says what went wrong: known errors in one line, surprises with their traceback."""
    if error is None:
        log.info("done")
        return EXIT_OK
    status = EXIT_ERROR
    for cause in _causes(error):
        if isinstance(cause, MoonpoolError) and cause.blame is not Blame.BUG:
            log.error("%s", cause.message, extra={"code": cause.code})
            if cause.blame is Blame.CALLER:
                status = EXIT_SETTINGS
        else:
            log.error("unexpected error", exc_info=cause)
    return status


def _causes(error: BaseException) -> list[BaseException]:
    """The errors inside task groups' groups."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for each in error.exceptions for cause in _causes(each)]
    return [error]


def _help(role: str, kind: type[CommonSettings], *, asked: bool) -> int:
    out = sys.stdout if asked else sys.stderr
    print(f"Moonpool {role}: takes no arguments; these variables set it up:\n", file=out)
    for name, field in kind.model_fields.items():
        print(f"  {PREFIX}{name.upper()} (default {field.default!r})", file=out)
        print(f"      {field.description}", file=out)
    return EXIT_OK if asked else EXIT_SETTINGS
