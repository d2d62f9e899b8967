"""`moonpool simulate cache`: one object of figures on standard output, progress beside it."""

import json
import subprocess
import sys


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", "simulate", "cache", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_figures_are_one_object_of_policy_capacity_and_rate() -> None:
    words = ["--trace", "documents", "--capacity-tokens", "3e5,1e6", "--policy", "lru,belady"]
    done = simulate(*words, "--json")
    assert done.returncode == 0
    rates = json.loads(done.stdout)
    assert list(rates) == ["lru", "belady"]
    assert list(rates["lru"]) == ["300000", "1000000"]
    assert rates["lru"]["300000"] < rates["lru"]["1000000"] < rates["belady"]["1000000"] < 1
    assert "4/4" in done.stderr


def test_what_cannot_be_simulated_is_said_in_one_line() -> None:
    rest = ["--capacity-tokens", "1e6", "--policy", "lru"]
    missing = simulate("--trace", "/nowhere/trace.jsonl", *rest)
    assert missing.returncode == 1
    assert "No such file" in missing.stderr
    unknown = simulate("--trace", "chat", "--capacity-tokens", "1e6", "--policy", "oracle")
    assert unknown.returncode == 2
    assert "'oracle' is none of lru" in unknown.stderr
