"""Settings are read once, and a bad one names itself."""

from pathlib import Path

import pytest

from moonpool.settings import (
    ConductorSettings,
    GatewaySettings,
    SettingsError,
    StoreSettings,
    WorkerSettings,
    load_settings,
)


def test_a_service_starts_with_an_empty_environment() -> None:
    assert load_settings(GatewaySettings, {}).http_port == 8080


def test_a_variable_sets_the_field_of_its_name() -> None:
    settings = load_settings(WorkerSettings, {"MOONPOOL_BLOCK_TOKENS": "128", "HOME": "/"})
    assert settings.block_tokens == 128


def test_a_variable_of_another_service_is_let_pass() -> None:
    assert load_settings(StoreSettings, {"MOONPOOL_HTTP_PORT": "9000"}).dram_bytes > 0


def test_an_unknown_variable_stops_the_start_by_name() -> None:
    with pytest.raises(SettingsError, match="MOONPOOL_HTTP_PROT"):
        load_settings(GatewaySettings, {"MOONPOOL_HTTP_PROT": "9000"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTP_PORT", "65536"), ("HTTP_PORT", "eighty"), ("ATTEMPTS_MAX", "0")],
)
def test_a_bad_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"MOONPOOL_{name}='{value}'"):
        load_settings(GatewaySettings, {f"MOONPOOL_{name}": value})


def test_settings_can_not_be_changed_after_the_start() -> None:
    settings = load_settings(ConductorSettings, {})
    with pytest.raises(ValueError, match="frozen"):
        settings.slo_ttft_s = 1.0  # type: ignore[misc]


def test_a_value_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret word\n")
    environ = {"MOONPOOL_NATS_PASSWORD_FILE": str(tmp_path / "password")}
    assert load_settings(StoreSettings, environ).nats_password == "s3cret word"


def test_a_setting_whose_name_ends_in_file_is_no_reference_to_one() -> None:
    environ = {"MOONPOOL_STATE_FILE": "/nowhere/state"}
    assert load_settings(StoreSettings, environ).state_file == "/nowhere/state"


def test_a_file_that_is_not_there_names_its_variable() -> None:
    with pytest.raises(SettingsError, match="MOONPOOL_SECRET_FILE='/nowhere'"):
        load_settings(GatewaySettings, {"MOONPOOL_SECRET_FILE": "/nowhere"})


def test_a_value_given_twice_is_refused() -> None:
    environ = {"MOONPOOL_SECRET_FILE": "/nowhere", "MOONPOOL_SECRET": "a"}
    with pytest.raises(SettingsError, match="both set"):
        load_settings(GatewaySettings, environ)


def test_a_file_for_an_unknown_setting_stops_the_start_by_name() -> None:
    with pytest.raises(SettingsError, match="MOONPOOL_NONSENSE_FILE"):
        load_settings(GatewaySettings, {"MOONPOOL_NONSENSE_FILE": "/nowhere"})
