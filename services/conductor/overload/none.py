"""No admission: whatever can be run is begun. What overload does to such a mesh is shown by it."""

from moonpool.messages.errors import ErrorInfo
from services.conductor.admission import late_refusal
from services.conductor.overload.base import Offer


class NoGate:
    """Refuses nothing."""

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        return None


class BaselineGate:
    """The paper's baseline: prefill load counts at arrival; decode load only once the prefill is
    done, when refusing wastes it. Our decodes have no such second look; the simulator's have."""

    def refuse(self, offer: Offer) -> ErrorInfo | None:
        return late_refusal(offer.demand, offer.choice, offer.know.prefill, offer.now_s)
