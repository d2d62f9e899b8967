"""What is written down agrees with what is there."""

import re
import tomllib

import moonpool
from moonpool.settings import ALL_SETTINGS
from moonpool.settings.document import configuration_page
from tests.unit.tidy.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_configuration_page_is_what_the_settings_say() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == configuration_page(), (
        "renew it: python -m moonpool.settings.document > docs/configuration.md"
    )


def test_every_setting_has_a_description() -> None:
    silent = [
        f"{kind.__name__}.{name}"
        for kind in ALL_SETTINGS
        for name, field in kind.model_fields.items()
        if not field.description
    ]
    assert not silent


def test_package_changelog_and_library_name_one_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert PROJECT["version"] == moonpool.__version__ == versions[0]


def test_locks_hold_every_dependency_of_the_project() -> None:
    text = (ROOT / "requirements.lock").read_text()
    locked = {name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)}
    wanted = {re.split(r"[=<>!~\[ ]", each)[0].lower() for each in PROJECT["dependencies"]}
    assert wanted - {"torch"} <= locked


def test_everything_locked_carries_hashes() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        for entry in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / name).read_text()):
            assert "--hash=sha256:" in entry, f"{name}: {entry.splitlines()[0]}"


def test_the_torch_pin_is_one_that_the_project_accepts() -> None:
    pin = (ROOT / "requirements-torch.txt").read_text().splitlines()[-1]
    accepted = next(d for d in PROJECT["dependencies"] if d.startswith("torch"))
    release = pin.removeprefix("torch==").rsplit(".", 1)[0]
    assert f">={release}" in accepted


def test_make_names_the_documented_targets() -> None:
    text = (ROOT / "Makefile").read_text()
    for target in ("setup", "up", "down", "test", "check", "bench"):
        assert re.search(rf"^{target}:", text, re.MULTILINE), target
