"""Predicted against actual time to first token."""

import pytest

from services.gateway.core.forecast import KEPT, Forecast
from tests.unit.gateway.house import open_house


def test_errors_are_relative_to_what_happened() -> None:
    forecast = Forecast()
    assert forecast.quantile(0.9) == 0.0
    assert forecast.note(1.0, 2.0) == 2.0
    assert forecast.note(2.0, 2.0) == 1.0
    assert forecast.quantile(0.5) == pytest.approx(0.5)


def test_no_prediction_is_no_error() -> None:
    forecast = Forecast()
    assert forecast.note(0.0, 1.0) is None
    assert forecast.quantile(0.5) == 0.0


def test_only_the_last_ones_count() -> None:
    forecast = Forecast()
    for _ in range(KEPT):
        forecast.note(9.0, 1.0)
    for _ in range(KEPT):
        forecast.note(1.0, 1.0)
    assert forecast.quantile(1.0) == 0.0


async def test_a_request_s_forecast_is_exported() -> None:
    async with open_house() as house:
        assert (await house.chat()).status_code == 200
        text = (await house.http.get("/metrics")).text
        assert "moonpool_ttft_actual_over_predicted_ratio_count 1" in text
        (line,) = [row for row in text.splitlines() if 'ttft_error_ratio{quantile="0.5"}' in row]
        # the scripted conductor predicts 0.1 s, and the answer comes at once
        assert float(line.split()[1]) > 0.0
