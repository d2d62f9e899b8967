"""What the members of the mesh can be asked for: which models, and is it enough to answer."""

from collections import Counter
from collections.abc import Sequence

from moonpool.messages.registry import ModelRecord
from moonpool.runtime import Member

SUSPECT = "suspect"


def record_of(members: Sequence[Member], model: str) -> ModelRecord | None:
    """What most of those who serve `model` say about it; None when nobody does."""
    votes: Counter[bytes] = Counter()
    records: dict[bytes, ModelRecord] = {}
    for member in members:
        record = member.registration.model
        if record is not None and record.model == model and _serves(member):
            votes[record.fingerprint] += 1
            records[record.fingerprint] = record
    return records[votes.most_common(1)[0][0]] if votes else None


def models_of(members: Sequence[Member]) -> dict[str, float]:
    """Every model served, and since when (unix seconds)."""
    since: dict[str, float] = {}
    for member in members:
        record, start_s = member.registration.model, member.registration.started_unix_s
        if record is not None and _serves(member):
            since[record.model] = min(start_s, since.get(record.model, start_s))
    return since


def missing(members: Sequence[Member], model: str) -> list[str]:
    """What the mesh lacks to answer requests for `model`; empty: nothing."""
    roles = set()
    for member in members:
        record = member.registration.model
        if member.is_usable and (record is None or record.model == model):
            roles.add(member.role)
    lacks = [] if "conductor" in roles else ["no conductor"]
    if "colocated" not in roles:
        lacks += [f"no {role} instance" for role in ("prefill", "decode") if role not in roles]
    return lacks


def counts(members: Sequence[Member]) -> dict[str, dict[str, int]]:
    """Members by role and state."""
    table: dict[str, dict[str, int]] = {}
    for member in members:
        row = table.setdefault(member.role, {})
        state = SUSPECT if member.is_suspect else member.state
        row[state] = row.get(state, 0) + 1
    return table


def _serves(member: Member) -> bool:
    """Suspect ones count: the conductors decide who is asked, not we."""
    return member.state != "starting"
