"""What goes wrong inside an instance.

CapacityError
├── QueueFull           too many prompts wait
├── StartedTooLate      its turn came after the caller's own limit: nothing was computed
├── Preempted           KV blocks ran out in mid-answer: continue elsewhere
└── DeadlineExceeded    the request's own deadline has passed
PeerError
└── FetchFailed         reused blocks did not arrive: they are computed instead
CorruptionError
└── CorruptBlocks       bytes that arrived are not what was promised
CallerError
└── RequestCancelled    the gateway asked for the end
"""

from moonpool.messages.errors import CallerError, CapacityError, CorruptionError, PeerError


class QueueFull(CapacityError):
    code = "queue_full"


class StartedTooLate(CapacityError):
    code = "ttft"


class Preempted(CapacityError):
    code = "preempted"


class DeadlineExceeded(CapacityError):
    code = "deadline"


class FetchFailed(PeerError):
    code = "fetch_failed"


class CorruptBlocks(CorruptionError):
    code = "corrupt"


class RequestCancelled(CallerError):
    code = "cancelled"
