"""`moonpool simulate`: figures for people, and one object of them last."""

import json
import subprocess
import sys
from pathlib import Path


def moonpool(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    return moonpool("simulate", "cache", *words)


def test_figures_are_one_object_of_policy_capacity_and_rate() -> None:
    words = ["--trace", "documents", "--capacity-tokens", "3e5,1e6", "--policy", "lru,belady"]
    done = simulate(*words, "--json")
    assert done.returncode == 0
    rates = json.loads(done.stdout)
    assert list(rates) == ["lru", "belady"]
    assert list(rates["lru"]) == ["300000", "1000000"]
    assert rates["lru"]["300000"] < rates["lru"]["1000000"] < rates["belady"]["1000000"] < 1
    assert "4/4" in done.stderr


def test_filters_of_a_lower_tier_are_compared_by_hits_and_writes() -> None:
    words = ["--upper-tokens", "1e5", "--lower-tokens", "1e6", "--admission", "uses,all", "--json"]
    done = moonpool("simulate", "tiers", "--trace", "tools", *words)
    assert done.returncode == 0
    figures = json.loads(done.stdout)
    assert list(figures) == ["uses", "all"]
    assert figures["uses"]["written_per_token"] < figures["all"]["written_per_token"] < 1
    assert figures["uses"]["hits_per_write"] > figures["all"]["hits_per_write"]
    unknown = moonpool("simulate", "tiers", "--trace", "tools", *words[:5], "oracle")
    assert unknown.returncode == 2
    assert "'oracle' is none of uses" in unknown.stderr


def test_every_option_of_the_cache_simulation_says_what_it_is_for() -> None:
    told = simulate("--help").stdout
    for words in ["several with commas", "one cold pass", "second half", "token hit rate"]:
        assert words in " ".join(told.split())


def test_what_cannot_be_simulated_is_said_in_one_line() -> None:
    rest = ["--capacity-tokens", "1e6", "--policy", "lru"]
    missing = simulate("--trace", "/nowhere/trace.jsonl", *rest)
    assert missing.returncode == 1
    assert "No such file" in missing.stderr
    unknown = simulate("--trace", "chat", "--capacity-tokens", "1e6", "--policy", "oracle")
    assert unknown.returncode == 2
    assert "'oracle' is none of lru" in unknown.stderr


def test_policies_are_compared_and_a_report_is_written(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = ["--trace", "chat", "--requests", "40", "--policy", "global,ours", "--nodes", "2"]
    done = moonpool("simulate", "serve", *words, "--html", str(page), "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert [run["policy"] for run in runs] == ["global", "ours"]
    assert all(run["ttft_mean_s"] > 0 for run in runs)
    assert "<svg" in page.read_text()


def test_a_mesh_is_sized_and_an_impossible_promise_said_to_be_one() -> None:
    words = ["--trace", "chat", "--requests", "60", "--nodes-max", "4", "--dram-gb", "500"]
    done = moonpool("plan", *words, "--slo-ttft", "20", "--slo-tbt", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout.splitlines()[-1])["best"]
    assert 1 <= best["prefills"] <= 4
    never = moonpool("plan", *words, "--slo-ttft", "0.001", "--slo-tbt", "0.2")
    assert never.returncode == 1
    assert "not even 4 prefills" in never.stderr
