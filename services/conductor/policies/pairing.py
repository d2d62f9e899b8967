"""How the papers' policies pick the decode: by load alone, after the prefill."""

from services.conductor.policies.base import Choice, View, turns
from services.conductor.prefills import PrefillOption


def with_least_loaded_decode(view: View, prefill: PrefillOption) -> Choice | None:
    """The prefill with the decode whose tokens would come fastest; a colocated prefill with
    itself. None: no decode can take the request."""
    able = view.able()
    if prefill.member.duty == "both":
        decodes = [option for option in able if option.member is prefill.member]
    else:
        decodes = [option for option in able if option.member.duty == "decode"]
    if not decodes:
        return None
    turn = turns(decodes, view.rotation)
    best = min(decodes, key=lambda option: (option.tbt_s, turn[option.member.id]))
    return view.pair(prefill, best)
