"""Names that settings offer are names that there are."""

from typing import get_args

import pytest

from moonpool.settings.conductor import ConductorSettings
from services.conductor.overload import GATE_NAMES, make_gate
from services.conductor.policies import POLICY_NAMES, make_policy


def test_settings_offer_every_policy_and_admission_mode() -> None:
    fields = ConductorSettings.model_fields
    assert set(get_args(fields["scheduling"].annotation)) == set(POLICY_NAMES)
    assert set(get_args(fields["admission"].annotation)) == set(GATE_NAMES)


def test_unknown_names_and_thresholds_are_refused() -> None:
    with pytest.raises(ValueError, match="none of random"):
        make_policy("best")
    with pytest.raises(ValueError, match="none of none"):
        make_gate("best")
    with pytest.raises(ValueError, match="at least 1"):
        make_policy("global", threshold=0.5)
