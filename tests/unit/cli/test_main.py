"""The command line is quick to ask and clear to read."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.cli import main
from services.cli.program import VERBS, build_parser


@pytest.mark.parametrize("verb", [each.__name__.rsplit(".", 1)[1] for each in VERBS])
def test_every_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert f"moonpool {verb}" in shown


def test_help_loads_nothing_heavy() -> None:
    probe = (
        "import sys, services.cli.program as m; m.build_parser();"
        "print([n for n in ('torch', 'pydantic', 'httpx', 'nats', 'numpy') if n in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_version_is_the_library_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert '"moonpool": "0.1.0"' in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["status", "chat", "models"])
def test_without_a_mesh_one_line_says_what_to_do(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--state-dir", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f"moonpool {verb}: no mesh runs here")
    assert shown.count("\n") == 1


def test_down_without_a_mesh_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["down", "--state-dir", str(tmp_path)]) == 0
    assert "no mesh runs here" in capsys.readouterr().out


def test_an_unknown_verb_ends_with_2() -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["fly"])
    assert ended.value.code == 2
