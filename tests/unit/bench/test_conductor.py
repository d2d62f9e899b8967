"""The conductor's benchmark on small sizes: every figure is there, and makes sense."""

from itertools import pairwise

from bench.conductor.chains import KEY_BYTES, LONG, SHORT, events, make_chains
from bench.conductor.index import bench_index
from bench.conductor.restart import bench_restart


def test_events_tell_every_block_once_each_after_its_parent() -> None:
    chains = make_chains(8000)
    told = events(chains)
    assert b"".join(keys for _, _, keys in told) == b"".join((*chains[SHORT], *chains[LONG]))
    for (owner, _, keys), (after, parent, _) in pairwise(told):
        assert not parent or (owner == after and parent == keys[-KEY_BYTES:])


def test_the_index_is_measured_without_a_rival_and_says_why() -> None:
    results = bench_index(8000, 50, "not here")
    assert results["dynamo"] == "not measured: not here"
    assert "match_over_dynamo" not in results
    for name in ("match_64_us_p50", "match_2000_us_p99", "confirm_64_us_p50"):
        assert float(results[name]) > 0.0


def test_a_restart_is_measured_to_its_end() -> None:
    assert bench_restart(16_000)["restart_s_per_million_blocks"] > 0.0
