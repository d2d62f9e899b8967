"""Setup takes the right build of torch, and says what a person has to do."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import setup
import torch_build

HERE = Path(sys.executable)


@pytest.mark.parametrize(
    ("choice", "gpu", "have", "build"),
    [
        ("auto", False, "", "cpu"),
        ("auto", True, "", "cuda"),
        ("auto", False, "2.12.0+cpu", "cpu"),
        ("auto", False, "2.13.0+cpu", None),
        ("auto", False, "2.13.0", None),  # somebody's own choice runs on the CPU too
        ("auto", True, "2.13.0+cpu", "cuda"),
        ("auto", True, "2.13.0+cu130", None),
        ("cpu", True, "2.13.0", "cpu"),
        ("cpu", True, "2.13.0+cpu", None),
        ("cuda", False, "2.13.0+cpu", "cuda"),
        ("cuda", False, "2.13.0", None),
    ],
)
def test_the_build_of_torch_follows_the_machine_and_the_choice(
    monkeypatch: pytest.MonkeyPatch, choice: str, gpu: bool, have: str, build: str | None
) -> None:
    monkeypatch.setattr(torch_build, "gpu_present", lambda: gpu)
    assert torch_build.choose(choice, "2.13.0", have) == build


def test_the_cpu_build_comes_from_a_wheel_folder_that_pip_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = torch_build.platform.machine()
    (tmp_path / f"torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_{machine}.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    source = torch_build.source_for("cpu", "2.13.0", HERE)
    assert source is not None
    assert "--no-index" in source.arguments
    assert str(tmp_path) in source.arguments


def test_without_any_source_several_gb_are_not_taken_by_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(torch_build, "_wheel_folders", lambda python: [tmp_path])
    monkeypatch.setattr(torch_build, "_reachable", lambda python: False)
    monkeypatch.setattr(torch_build, "_configured_index_has", lambda pinned, python: False)
    assert torch_build.source_for("cpu", "2.13.0", HERE) is None
    text = torch_build.no_source_text("2.13.0")
    assert "several GB" in text
    assert "make setup TORCH=cuda" in text


def test_the_default_build_is_asked_for_although_a_folder_holds_the_cpu_build() -> None:
    source = torch_build.source_for("cuda", "2.13.0", HERE)
    assert source is not None
    assert source.arguments == ["torch==2.13.0,!=2.13.0+cpu"]


def test_another_python_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(version_info=(3, 12, 1), executable="/usr/bin/python3")
    monkeypatch.setattr(setup, "sys", fake)
    with pytest.raises(setup.SetupError, match=r"needs Python 3\.11.*is 3\.12.*PYTHON="):
        setup.check_python()


def test_pins_are_read_from_a_lock_with_hashes(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(
        "Jinja2==3.1.6 \\\n    --hash=sha256:00 \\\n    # via torch\nuvloop==0.23.0 \\\n"
    )
    assert setup.read_pins(lock) == {"jinja2": "3.1.6", "uvloop": "0.23.0"}


def test_a_full_disk_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "PYTHON", tmp_path / "none")
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    with pytest.raises(setup.SetupError, match="GiB free"):
        setup.make_venv()
    assert not list(tmp_path.iterdir())
