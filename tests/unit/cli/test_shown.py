"""What the verbs print."""

import io
import json

import httpx
import pytest

from moonpool.messages.audit import AttemptV1, AuditEventV1, CachedTokensV1, StageTimingsV1
from moonpool.messages.load import LoadReport
from moonpool.messages.metrics import HistogramSampleV1, MetricSampleV1, MetricsSnapshotV1
from moonpool.messages.registry import Registration
from moonpool.messages.status import MemberStatus
from services.cli import http
from services.cli.options import Target
from services.cli.verbs.chat import Answer, Conversation
from services.cli.verbs.status import row_of, table
from services.cli.verbs.tail import line_of

TARGET = Target("http://gateway", {})


def make_member(**changed: object) -> MemberStatus:
    own = Registration("decode-1", "decode", "e", 0.0, "host-a", "0.1.0")
    load = LoadReport(
        *("decode-1", "e", 1),
        running=3,
        slots_total=32,
        blocks_free=75,
        blocks_total=100,
        tiers={"dram": (1 << 20, 4 << 20)},
    )
    fields = {"registration": own, "state": "ready", "health": "alive", "heard_ago_s": 0.1}
    return MemberStatus(**{**fields, "load": load, **changed})  # type: ignore[arg-type]


def test_status_shows_fill_queue_and_health() -> None:
    line = table([row_of(make_member())]).splitlines()[1]
    for shown in ("decode-1", "ready", "25/100 (25%)", "3/32", "dram 1/4 MiB (25%)"):
        assert shown in line


def test_status_shows_who_is_suspect_and_who_may_not_serve() -> None:
    shown = table([row_of(make_member(health="suspect", mismatch="another dtype"))])
    assert "suspect" in shown
    assert "! decode-1: another dtype" in shown


def make_event() -> AuditEventV1:
    return AuditEventV1(
        event_id="1",
        unix_s=0.0,
        gateway="gateway-1",
        tenant="public",
        request_id="r-1",
        endpoint="/v1/chat/completions",
        model="m",
        stream=True,
        outcome="ok",
        http_status=200,
        prompt_tokens=100,
        completion_tokens=7,
        cached_tokens=CachedTokensV1(hbm=64),
        timings=StageTimingsV1(ttft_s=0.25, total_s=1.0),
        attempts=[AttemptV1(prefill="prefill-1", decode="decode-2")],
    )


def test_tail_shows_an_audit_event_in_one_line() -> None:
    line = line_of(make_event().model_dump_json().encode(), "audit", as_json=False)
    assert "\n" not in line
    for shown in ("public", "ok 200", "cached 64 hbm", "ttft 0.250 s", "prefill-1/decode-2"):
        assert shown in line


def test_tail_shows_metrics_that_are_not_zero_in_one_line() -> None:
    snapshot = MetricsSnapshotV1(
        service="store",
        id="store-1",
        epoch="e",
        unix_s=0.0,
        uptime_s=1.0,
        samples=[
            MetricSampleV1(name="moonpool_gets_total", kind="counter", value=3),
            MetricSampleV1(name="moonpool_puts_total", kind="counter", value=0),
        ],
        histograms=[HistogramSampleV1(name="moonpool_get_s", count=1, sum=1, p50=0.1, p95=0.2)],
    )
    line = line_of(snapshot.model_dump_json().encode(), "metrics", as_json=False)
    assert "store-1 gets_total=3 get_s=0.1/0.2" in line
    assert "puts" not in line


def test_tail_gives_json_as_it_came_and_marks_what_is_none() -> None:
    assert line_of(b'{"a": 1}', "audit", as_json=True) == '{"a": 1}'
    assert line_of(b"garbage", "audit", as_json=False).startswith("? ")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'{"error": {"message": "no model x", "code": "model_not_found"}}', "no model x (404"),
        (b"<html>", "HTTP 404: <html>"),
        (b'{"error": "text"}', "HTTP 404"),
    ],
)
def test_an_error_of_the_gateway_becomes_one_line(content: bytes, shown: str) -> None:
    assert http.error_text(404, content).startswith(shown)


def sse(*chunks: object) -> bytes:
    return b"".join(f"data: {json.dumps(c)}\n\n".encode() for c in chunks) + b"data: [DONE]\n\n"


def answering(monkeypatch: pytest.MonkeyPatch, status: int, body: bytes) -> list[dict[str, object]]:
    """Every request of httpx gets this answer; returns the bodies that were sent."""
    sent: list[dict[str, object]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(status, content=body)

    client = httpx.Client(transport=httpx.MockTransport(handle))
    monkeypatch.setattr(http.httpx, "stream", client.stream)
    return sent


def test_a_turn_keeps_the_history_and_reads_the_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("Hel", "lo")]
    sent = answering(monkeypatch, 200, sse(*chunks, {"choices": [], "usage": usage}))
    talk = Conversation(TARGET, {"model": "m"})
    answer = talk.ask("Hi", show=False)
    assert (answer.text, answer.cached_tokens, answer.completion_tokens) == ("Hello", 8, 2)
    talk.ask("More", show=False)
    assert (
        sent[1]["messages"]
        == [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "More"},
            {"role": "assistant", "content": "Hello"},
        ][:3]
    )


@pytest.mark.parametrize(
    ("status", "body"),
    [(503, b'{"error": {"message": "full"}}'), (200, sse({"error": {"message": "lost"}}))],
)
def test_a_turn_that_fails_is_not_in_the_history(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    answering(monkeypatch, status, body)
    talk = Conversation(TARGET, {"model": "m"})
    with pytest.raises(http.GatewayRefused, match=r"full|lost"):
        talk.ask("Hi", show=False)
    assert talk.messages == []


def test_reset_keeps_what_the_model_is_told_first() -> None:
    talk = Conversation(TARGET, {"model": "m"}, system="Be brief.")
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "Be brief."}]


def test_the_footer_tells_speed_and_cache() -> None:
    answer = Answer("x", 100, 11, 64, ttft_s=0.5, total_s=1.5)
    assert answer.footer() == (
        "[11 tokens, 10.0/s, first after 0.50 s; 64 of 100 prompt tokens cached]"
    )
    assert json.loads(answer.as_json())["tokens_per_s"] == 10.0


def test_lines_are_read_to_the_end_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.cli.verbs import chat

    monkeypatch.setattr(chat.sys, "stdin", io.StringIO("one\n two \n"))
    assert [chat._read(False) for _ in range(3)] == ["one", "two", None]
