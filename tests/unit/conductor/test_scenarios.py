"""Scenarios that a reader should study: `scenarios/*.txt`, command and expected.

`REWRITE_SCENARIOS=1 pytest tests/unit/conductor/test_scenarios.py` writes what happens now; review
the diff.
"""

import os
from pathlib import Path

import pytest

from tests.unit.conductor.driver import run_file

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    found, expected = run_file(path)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(expected)
    else:
        assert found == expected


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 8
