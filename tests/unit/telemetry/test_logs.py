"""Log lines: one line each, and readable back."""

import asyncio
import logging
import shlex
import sys

import pytest

from moonpool.telemetry import request_scope
from moonpool.telemetry.logs import KeyValueFormatter, setup_logging


def _line(message: str, **extra: object) -> str:
    record = logging.LogRecord("x", logging.INFO, "f.py", 1, message, (), None)
    vars(record).update(extra)
    return KeyValueFormatter("store", "n1").format(record)


def test_a_line_holds_who_when_and_what() -> None:
    fields = dict(part.split("=", 1) for part in shlex.split(_line("block put", tier="dram", n=3)))
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "info",
        "service": "store",
        "id": "n1",
        "msg": "block put",
        "tier": "dram",
        "n": "3",
    }


def test_whatever_is_said_stays_on_one_line() -> None:
    line = _line('evil "quoted"\nlevel=error\x1b[31m', path="a b=c")
    assert "\n" not in line
    assert "\x1b" not in line
    assert 'msg="evil \\"quoted\\"\\nlevel=error\\x1b[31m"' in line
    assert 'path="a b=c"' in line


def test_an_exception_is_kept_on_the_line() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f.py", 1, "m", (), sys.exc_info())
    line = KeyValueFormatter("store", "n1").format(record)
    assert "\n" not in line
    assert "ValueError" in line


async def test_lines_within_a_request_name_it_also_from_tasks() -> None:
    async def from_task() -> str:
        return _line("m")

    with request_scope("req-1"):
        assert "request=req-1" in _line("m")
        assert "request=req-1" in await asyncio.create_task(from_task())
    assert "request=" not in _line("m")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        setup_logging("loud", "store", "n1")
