"""docker-compose.yml and what belongs to it, read without an engine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from moonpool.settings import PREFIX, known_names
from moonpool.telemetry import names

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
ONCE = {"credentials", "model", "bucket"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert int(service["user"].split(":")[0]) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus", "pids_limit", "restart"} <= service.keys()
    assert ("healthcheck" in service) == (name not in ONCE)


def test_ports_are_published_to_this_machine_alone_unless_said_otherwise() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("${PUBLISH_ADDRESS:-127.0.0.1}:") for port in ports)


def test_every_variable_for_services_is_a_setting() -> None:
    known = known_names()
    for service in SERVICES.values():
        for variable in service.get("environment", {}):
            if variable.startswith(PREFIX):
                field = variable.removeprefix(PREFIX).lower()
                assert field in known or field.removesuffix("_file") in known, variable


def test_every_choice_stands_in_the_example_with_its_default() -> None:
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    choices = dict(re.findall(r"\$\{([A-Z0-9_]+):?-([^}]*)\}", TEXT))
    assert example == choices
    for preset in ("colocated", "gpu"):
        for line in (ROOT / "deploy" / f"{preset}.env").read_text().splitlines():
            if line and not line.startswith("#"):
                assert line.split("=")[0] in {*choices, "COMPOSE_PROFILES"}


def test_no_secret_stands_in_the_file() -> None:
    assert not re.search(r"(PASSWORD|SECRET|PASSPHRASE|KEY)\w*: *(?!\$\{|/)[\w\"']+", TEXT)


def test_each_service_has_a_nats_user_of_its_own_and_sees_no_other_password() -> None:
    config = (ROOT / "deploy" / "nats" / "nats.conf").read_text()
    users = set(re.findall(r"user: (\w+),", config))
    for name, service in SERVICES.items():
        user = service.get("environment", {}).get("MOONPOOL_NATS_USER")
        mounted = {v.split(":")[0] for v in service.get("volumes", []) if "credentials-" in v}
        if user is not None:
            assert user in users
            assert mounted == {f"credentials-{user}"}, name


def test_dashboards_and_rules_ask_for_metrics_that_exist() -> None:
    known = {spec.name for spec in names.ALL}
    board = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "moonpool.json").read_text())
    asked = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    found = {name for text in asked for name in re.findall(r"moonpool_\w+", text)}
    found = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}
    assert len(found) > 20
    assert found <= known
