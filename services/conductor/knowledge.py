"""Knowledge: all that choices rest on. Owned by the core, read by the schedule and its policies."""

from dataclasses import dataclass

from services.conductor.backlog import Backlogs
from services.conductor.bandwidth import TransferPredictor
from services.conductor.fleet import Fleet
from services.conductor.holdings import Holdings
from services.conductor.picks import Picks
from services.conductor.predict import Predictor
from services.conductor.senders import Senders


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What one conductor knows, part by part."""

    fleet: Fleet
    holdings: Holdings
    prefill: Predictor
    steps: Predictor
    transfers: TransferPredictor
    picks: Picks
    senders: Senders
    backlogs: Backlogs
