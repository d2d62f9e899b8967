"""`moonpool trace export`: audit events become a trace that the simulator reads."""

import json
from pathlib import Path

import numpy as np
import pytest

from moonpool.kv import block_keys
from moonpool.messages.audit import AuditEventV1, StageTimingsV1
from services.cli import main
from services.cli.traces import TraceExport
from services.gateway.core.blocks import block_names

BLOCK_TOKENS = 64


def make_event(
    name: str, tokens: int, ended_s: float, seed: int = 0, **given: object
) -> AuditEventV1:
    keys = block_keys(b"r" * 16, np.arange(tokens, dtype=np.int32), BLOCK_TOKENS)
    fields: dict[str, object] = {
        "event_id": name,
        "unix_s": 1000.0 + ended_s,
        "gateway": "g",
        "tenant": "acme",
        "request_id": name,
        "endpoint": "/v1/completions",
        "model": "m",
        "stream": False,
        "outcome": "ok",
        "http_status": 200,
        "prompt_tokens": tokens,
        "completion_tokens": 7,
        "timings": StageTimingsV1(total_s=1.0),
        "block_tokens": BLOCK_TOKENS,
        "block_names": block_names(keys),
    }
    return AuditEventV1(**{**fields, **given})


def test_equal_prefixes_get_equal_numbers_and_nothing_says_what_they_hold() -> None:
    export = TraceExport(block_tokens=128)
    first, second = make_event("a", 400, 5.0), make_event("b", 300, 3.5)
    lines = list(export.lines([first, second, first]))
    assert [line["timestamp"] for line in lines] == [0, 1500]
    assert lines[0]["hash_ids"][:2] == lines[1]["hash_ids"][:2]
    assert len(lines[1]["hash_ids"]) == 4
    assert lines[0]["hash_ids"][2] not in lines[1]["hash_ids"]
    assert "acme" not in json.dumps(lines)
    assert (export.told.requests, export.told.left_out, export.told.nameless) == (2, 1, 0)


def test_without_names_lengths_and_times_are_still_exported() -> None:
    export = TraceExport(block_tokens=128)
    bare = make_event("a", 300, 0.0, block_tokens=0, block_names="")
    lines = list(export.lines([bare, make_event("r", 0, 1.0)]))
    assert [line["input_length"] for line in lines] == [300]
    assert export.told.nameless == 1


def test_a_file_of_events_becomes_a_trace_and_a_bad_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, trace = tmp_path / "audit.jsonl", tmp_path / "trace.jsonl"
    events.write_text("\n".join(make_event(n, 300, 1.0).model_dump_json() for n in "ab"))
    assert main(["trace", "export", "--file", str(events), "--out", str(trace)]) == 0
    assert [json.loads(line)["output_length"] for line in trace.read_text().splitlines()] == [7, 7]
    events.write_text("{}\n")
    assert main(["trace", "export", "--file", str(events)]) == 1
    assert "line 1" in capsys.readouterr().err
