"""Headers that ask for priority and promises, within the tenant's limits."""

import httpx
import pytest

from moonpool.messages.ids import TenantId
from moonpool.settings import SettingsError
from services.gateway.core.errors import BadInput
from services.gateway.core.promises import NO_PROMISES, Promises, TenantLimits, read_promises
from tests.unit.gateway.house import open_house
from tests.unit.gateway.scripts import MODEL

SPEC = "alpha: weight=4 priority=high ttft=0.5 tbt=0.02; beta: priority=low; *: weight=2"
LIMITS = TenantLimits.read(SPEC)


def asked(tenant: str, **headers: str) -> Promises:
    named = {f"x-moonpool-{name.replace('_', '-')}": value for name, value in headers.items()}
    return read_promises(named, LIMITS.of(TenantId(tenant)))


def test_nothing_asked_is_nothing_promised() -> None:
    assert read_promises({}, TenantLimits().of(TenantId("t"))) == NO_PROMISES


def test_each_header_means_what_it_says() -> None:
    promises = asked("alpha", priority="HIGH", slo_ttft="0.5", slo_tbt="0.1", deadline="30")
    assert promises == Promises(0, 4.0, 0.5, 0.1, 30.0)
    assert asked("gamma").weight == 2.0


def test_a_tenant_below_normal_is_below_normal_without_asking() -> None:
    assert asked("beta").level == 2


@pytest.mark.parametrize(
    ("tenant", "headers", "status"),
    [
        ("alpha", {"priority": "urgent"}, 400),
        ("alpha", {"slo_ttft": "soon"}, 400),
        ("alpha", {"slo_ttft": "nan"}, 400),
        ("alpha", {"slo_tbt": "-1"}, 400),
        ("alpha", {"deadline": "1e9"}, 400),
        ("alpha", {"slo_ttft": "0.4"}, 403),
        ("alpha", {"slo_tbt": "0.01"}, 403),
        ("beta", {"priority": "normal"}, 403),
        ("gamma", {"priority": "high"}, 403),
    ],
)
def test_what_is_wrong_or_not_allowed_names_the_header(
    tenant: str, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(BadInput) as caught:
        asked(tenant, **headers)
    assert caught.value.status == status
    assert caught.value.param == f"x-moonpool-{next(iter(headers)).replace('_', '-')}"


@pytest.mark.parametrize(
    "spec",
    [
        "alpha",
        "al pha: weight=1",
        "a: weight=0",
        "a: weight=x",
        "a: speed=1",
        "a: priority=urgent",
        "a: ttft=-1",
        "a: weight=1 weight=2",
        "a: weight=1; a: weight=2",
    ],
)
def test_a_bad_setting_names_itself(spec: str) -> None:
    with pytest.raises(SettingsError, match="MOONPOOL_TENANT_LIMITS"):
        TenantLimits.read(spec)


async def test_headers_reach_the_conductor_and_the_prefill() -> None:
    keys = "sk-alpha-key=alpha, sk-gamma-key=gamma"
    async with open_house(api_keys=keys, secret="s", tenant_limits=SPEC) as house:

        async def ask(key: str, **headers: str) -> httpx.Response:
            body = {"model": MODEL, "prompt": "hello", "max_tokens": 4}
            told = {"authorization": f"Bearer {key}", **headers}
            return await house.http.post("/v1/completions", json=body, headers=told)

        asks = {"x-moonpool-priority": "high", "x-moonpool-slo-ttft": "5"}
        assert (await ask("sk-alpha-key", **asks)).status_code == 200
        plan = house.mesh.plans[-1]
        submit = house.mesh.instances["p1"].submits[-1]
        assert (plan.level, plan.slo_ttft_s) == (0, 5.0)
        assert (submit.level, submit.weight) == (0, 4.0)
        assert 0.0 < submit.start_by_s <= 5.0
        denied = await ask("sk-gamma-key", **{"x-moonpool-priority": "high"})
        assert (denied.status_code, denied.json()["error"]["code"]) == (403, "not_allowed")
        assert (await ask("sk-gamma-key")).status_code == 200
        assert house.mesh.instances["p1"].submits[-1].start_by_s == 0.0
