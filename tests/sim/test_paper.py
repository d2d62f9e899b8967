"""The papers' experiments by name: every one runs, and says whose each number is."""

import argparse
import json

import pytest

from services.conductor.simulate.paper import program
from services.conductor.simulate.paper.figures import FIGURES

WHOSE = {
    "fig5": {"policy", "paper", "here"},
    "fig8": {"trace", "paper Mooncake", "paper vLLM", "here global", "here no cache", "here ours"},
    "fig9": {"trace", "tokens", "paper", "LRU", "ours"},
    "fig10": {"trace", "paper local", "here local", "here global", "here ours"},
    "fig15": {"split", "paper met", "global met", "ours met", "global TTFT s", "ours TBT ms"},
    "rejection": {"admission", "paper", "scheduled by global", "by ours", "SLO met"},
}


def paper(*words: str) -> int:
    parser = argparse.ArgumentParser()
    program.add(parser.add_subparsers())
    given = parser.parse_args(["paper", *words])
    return int(given.run(given))


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_runs_and_says_whose_each_number_is(
    figure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paper(figure, "--requests", "40", "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["assumed"], "nothing here is the paper's own machine and trace"
    for row in told["rows"]:
        assert row.keys() >= WHOSE[figure]
        assert not any(name.startswith("paper") and "ours" in name for name in row)


def test_another_mesh_is_for_rejection_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("rejection", "--requests", "30", "--mesh", "2P1D", "--speed", "3") == 0
    assert "2P 1D, 3x" in capsys.readouterr().out
    assert paper("fig5", "--mesh", "2P1D") == 2
    assert "rejection alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("rejection", "--mesh", "0P1D"), ("rejection", "--speed", "nan"), ("fig1",)]
)
def test_what_is_no_mesh_or_figure_is_named(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        paper(*words)
    assert words[-1] in capsys.readouterr().err
