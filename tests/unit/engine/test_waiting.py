"""Compute threads must not spin for long, unless the operator wants them to."""

import os
import subprocess
import sys

import pytest

SHOW = (
    "import sys, moonpool.engine, os; "
    "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "10000 False"),
        ({"GOMP_SPINCOUNT": "7"}, "7 False"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "None False"),
    ],
)
def test_waiting_is_settled_before_torch_is_loaded(given: dict[str, str], expected: str) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    env["PYTHONPATH"] = os.pathsep.join(["libs", env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**env, **given},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == expected, done.stderr
