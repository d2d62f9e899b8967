"""Asking to be let in: an instance or node serves nobody before a conductor accepted it."""

import random
from typing import TypeVar

from moonpool.bus import BusUnavailable, NoResponder, RequestTimeout
from moonpool.messages.codec import decode, encode
from moonpool.messages.errors import Blame, ErrorInfo, MoonpoolError
from moonpool.messages.registry import HelloReply, Registration
from moonpool.runtime.backoff import Backoff
from moonpool.runtime.context import ServiceContext
from moonpool.runtime.errors import RegistrationRefused
from moonpool.settings import CommonSettings

S = TypeVar("S", bound=CommonSettings)

TIMEOUT_S = 5.0
FIRST_WAIT_S = 0.1
WAIT_MAX_S = 2.0


async def say_hello(context: ServiceContext[S], registration: Registration) -> None:
    """Returns once a conductor accepted us, however long that takes; one log line per change of
    what we wait for. Raises RegistrationRefused. Cancellable."""
    backoff = Backoff(FIRST_WAIT_S, WAIT_MAX_S, random.Random(context.epoch))
    said = ""
    while True:
        waiting_for = await _ask(context, registration)
        if waiting_for is None:
            context.log.info("registered with a conductor")
            return
        if waiting_for != said:
            said = waiting_for
            context.log.info("not registered yet", extra={"waiting_for": said})
        await context.clock.sleep(backoff.next_s())


async def _ask(context: ServiceContext[S], registration: Registration) -> str | None:
    """None: accepted; else what we wait for."""
    try:
        answer = await context.bus.request(
            context.subjects.hello, encode(registration), timeout_s=TIMEOUT_S
        )
        refusal = decode(answer, HelloReply).refusal
    except NoResponder:
        return "a conductor"
    except (RequestTimeout, BusUnavailable) as error:
        return error.code
    except MoonpoolError as error:
        refusal = error.info()
    if refusal is None:
        return None
    if not _may_pass(refusal):
        raise RegistrationRefused(refusal)
    return f"{refusal.code}: {refusal.message}"


def _may_pass(refusal: ErrorInfo) -> bool:
    """Whether the same request may be accepted later."""
    return refusal.blame in (Blame.CAPACITY, Blame.PEER)
