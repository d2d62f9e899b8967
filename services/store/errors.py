"""What a node refuses.

CallerError
├── BadRequest        sizes, keys or times that make no sense
└── ObjectTooLarge    larger than the whole tier: will never fit
CapacityError
├── TooManySessions   open puts or leases are at their maximum
├── NodeDraining      no new puts here; another node takes them
└── WasAway           a put that began before the node came back: put it again
BugError
└── (an AssertionError of `check()` ends the process)
"""

from moonpool.messages.errors import CallerError, CapacityError


class BadRequest(CallerError):
    code = "bad_request"


class ObjectTooLarge(CallerError):
    code = "object_too_large"

    def __init__(self, size_bytes: int, size_max_bytes: int) -> None:
        super().__init__(f"an object of {size_bytes} bytes; this node takes {size_max_bytes}")
        self.size_bytes = size_bytes
        self.size_max_bytes = size_max_bytes


class TooManySessions(CapacityError):
    code = "too_many_sessions"

    def __init__(self, what: str, sessions_max: int) -> None:
        super().__init__(f"{sessions_max} {what} are open, which is the maximum", elsewhere=True)
        self.sessions_max = sessions_max


class NodeDraining(CapacityError):
    code = "draining"

    def __init__(self) -> None:
        super().__init__("this node is draining and takes no new objects", elsewhere=True)


class WasAway(CapacityError):
    code = "away"

    def __init__(self) -> None:
        super().__init__("this node was away: put it again", retry_after_s=0.05)
