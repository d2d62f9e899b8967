"""The report of a simulation: one HTML file that needs nothing else."""

import math
from html import escape
from itertools import groupby

from services.conductor.simulate.serve import charts
from services.conductor.simulate.serve.floor import floor_summary
from services.conductor.simulate.serve.machine import Machine
from services.conductor.simulate.serve.outcome import Result, bucketed, mean
from services.conductor.simulate.serve.setup import NO_LIMIT_S
from services.conductor.simulate.serve.traffic import Traffic

_STYLE = """
:root{color-scheme:light dark;--ink:#111827;--soft:#6b7280;--line:#e5e7eb;--page:#fafaf9;
--card:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--line:#374151;--page:#111827;
--card:#1f2937}}
body{font:15px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:0}
main{max-width:1240px;margin:0 auto;padding:32px 20px}
h1{font-size:26px;margin:0 0 4px}
h2{font-size:19px;margin:36px 0 8px;border-top:1px solid var(--line);padding-top:20px}
p{color:var(--soft);max-width:80ch;margin:4px 0 12px}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:18px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px}
figcaption{font-weight:600;margin-bottom:6px}figcaption small{font-weight:400;color:var(--soft)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
.wide{overflow-x:auto}tr.first td{border-top:2px solid var(--soft)}
th:first-child,td:first-child{text-align:left}tr.best td{font-weight:700}
svg{width:100%;height:auto}.grid{stroke:var(--line)}.tick{font-size:11px;fill:var(--soft)}
.label{font-size:12px;fill:var(--ink)}
.legend{font-size:13px;display:flex;flex-wrap:wrap;gap:4px 16px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
@media(max-width:600px){main{padding:16px 10px}figure{padding:8px}.tick,.label{font-size:16px}
td:first-child,th:first-child{position:sticky;left:0;background:var(--page)}}
"""
_STRETCHES = 100


def html_report(results: list[Result], traffic: Traffic, machine: Machine) -> str:
    """All runs; those of one size of mesh stand side by side."""
    title = f"{traffic.name} on {machine.name}"
    floor = floor_summary(traffic.asks, machine)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(traffic.asks):,} requests in {traffic.span_s / 60:.0f} minutes of the trace. "
        "Every plan was made by the conductor's own code; instances, links and pools are models. "
        "TTFT: time to first token; TBT: time between tokens. With no waiting and every prefix at "
        f"hand, TTFT would be {floor['ttft_mean_s']:.2f} s in the mean and "
        f"{floor['ttft_p90_s']:.2f} s at p90: no scheduler can be faster.</p>",
        _overview(results),
    ]
    ordered = sorted(results, key=lambda r: (r.prefills, r.decodes))
    for (prefills, decodes), group in groupby(ordered, key=lambda r: (r.prefills, r.decodes)):
        parts.append(f"<h2>{prefills} prefills, {decodes} decodes</h2>")
        parts.append(_group(list(group)))
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><main>{body}</main></html>\n"
    )


def name_of(result: Result, among: list[Result]) -> str:
    """What tells the run apart."""
    several = len({r.admission for r in among}) > 1
    return f"{result.policy}, {result.admission}" if several else result.policy


def _overview(results: list[Result]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "policy",
            "mesh",
            "speed",
            "TTFT mean s",
            "p50",
            "p90",
            "p99",
            "TBT p90 ms",
            "tokens reused",
            "prefills busy",
            "rejected",
            "SLO met",
        )
    )
    best = {
        size: min(r.summary()["ttft_mean_s"] for r in results if r.prefills == size)
        for size in {r.prefills for r in results}
    }
    rows: list[str] = []
    size = (0, 0)
    for result in sorted(results, key=lambda r: (r.prefills, r.decodes)):
        s = result.summary()
        promises = min(result.slo_ttft_s, result.slo_tbt_s) < NO_LIMIT_S
        cells = (
            name_of(result, results),
            f"{result.prefills}+{result.decodes}",
            f"{result.speed:.2f}",
            f"{s['ttft_mean_s']:.2f}",
            f"{s['ttft_p50_s']:.2f}",
            f"{s['ttft_p90_s']:.2f}",
            f"{s['ttft_p99_s']:.2f}",
            f"{float(s['tbt_p90_s']) * 1000:.0f}",
            f"{s['token_hit_rate']:.1%}",
            f"{s['prefill_busy_share']:.0%}",
            f"{s['rejected']:,}" if promises else "–",
            f"{s['slo_met_share_of_accepted']:.1%}" if promises else "–",
        )
        marks = ["best"] if s["ttft_mean_s"] == best[result.prefills] else []
        if size != (size := (result.prefills, result.decodes)) and rows:
            marks.append("first")
        mark = f' class="{" ".join(marks)}"' if marks else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _group(results: list[Result]) -> str:
    names = {name_of(result, results): result for result in results}
    ttft = {n: charts.cumulative([o.ttft_s for o in r.ended]) for n, r in names.items()}
    tbt = {
        n: charts.cumulative([o.tbt_s * 1000 for o in r.accepted if o.tbt_s > 0.0])
        for n, r in names.items()
    }
    queue = {
        n: _thinned([(s.at_s / 60, mean(s.prefill_queue_s)) for s in r.samples])
        for n, r in names.items()
    }
    batch = {
        n: _thinned([(s.at_s / 60, float(sum(s.decode_batch))) for s in r.samples])
        for n, r in names.items()
    }
    hits = {n: _hits(r) for n, r in names.items()}
    means = {n: float(r.summary()["ttft_mean_s"]) for n, r in names.items()}
    ours = [n for n, r in names.items() if r.policy == "ours"]
    figures = [
        _figure("Mean time to first token", "", charts.bars(means, "s")),
        _figure(
            "Time to first token",
            "share of requests served within",
            charts.lines(ttft, "seconds", "share", log_x=True, y_max=1.0, strong=ours),
        ),
        _figure(
            "Time between tokens",
            "mean of each request's slowest tenth",
            charts.lines(tbt, "milliseconds", "share", y_max=1.0, strong=ours),
        ),
        _figure(
            "Work waiting at a prefill",
            "mean over the prefills",
            charts.lines(queue, "minutes", "seconds of work", strong=ours),
        ),
        _figure(
            "Answers being written",
            "all decodes",
            charts.lines(batch, "minutes", "answers", strong=ours),
        ),
        _figure(
            "Prompt tokens reused",
            "of all",
            charts.lines(hits, "minutes", "share", y_max=1, strong=ours),
        ),
    ]
    figures += [
        _figure(f"Busy prefills: {n}", "white idle, blue computing", charts.heat(_busy(r), "time"))
        for n, r in names.items()
    ]
    return f'<div class="grid2">{"".join(figures)}</div>'


def _figure(title: str, note: str, chart: str) -> str:
    small = f" <small>{escape(note)}</small>" if note else ""
    return f"<figure><figcaption>{escape(title)}{small}</figcaption>{chart}</figure>"


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of stretches: a line, not a carpet."""
    size = max(1, math.ceil(len(points) / _STRETCHES))
    chunks = (points[at : at + size] for at in range(0, len(points), size))
    return [(chunk[0][0], mean([y for _, y in chunk])) for chunk in chunks]


def _hits(result: Result) -> list[tuple[float, float]]:
    every_s = max(1e-9, result.span_s / 40)
    tokens = bucketed(((o.arrived_s, o.prompt_tokens) for o in result.ended), every_s, 40, sum)
    reused = bucketed(((o.arrived_s, o.reused_tokens) for o in result.ended), every_s, 40, sum)
    return [
        (index * every_s / 60, part / whole if whole else 0.0)
        for index, (part, whole) in enumerate(zip(reused, tokens, strict=True))
    ]


def _busy(result: Result) -> dict[str, list[float]]:
    """Per prefill: share of samples with work, by stretch of time."""
    size = max(1, math.ceil(len(result.samples) / _STRETCHES))
    rows: dict[str, list[float]] = {id: [] for id in result.busy_s}
    for at in range(0, len(result.samples), size):
        chunk = result.samples[at : at + size]
        for index, id in enumerate(rows):
            working = sum(sample.prefill_queue_s[index] > 0 for sample in chunk)
            rows[id].append(working / len(chunk))
    return rows
