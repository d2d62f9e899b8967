"""What a node says of a put, as its caller hears it."""

from moonpool.client.errors import NoSpace, PutFailed, ValueTooLarge
from moonpool.messages import CapacityError, MoonpoolError

Outcome = str | MoonpoolError  # of one object


def outcome_error(name: str, outcome: Outcome) -> bool | MoonpoolError:
    """True: stored. False: it was there before. Else why not."""
    match outcome:
        case MoonpoolError() if outcome.code == "object_too_large":
            return ValueTooLarge(outcome.message)
        case MoonpoolError():
            return outcome
        case "committed":
            return True
        case "exists":
            return False
        case "no_space":
            return NoSpace(f"no room for {name!r} on its node", retry_after_s=1.0)
        case "over_quota":
            return CapacityError(f"{name!r} is beyond the tenant's quota", code="over_quota")
        case "busy" | "changed":
            return NoSpace(f"another put of {name!r} runs", code="busy", retry_after_s=1.0)
    return PutFailed(f"the node did not take {name!r}: {outcome}")
