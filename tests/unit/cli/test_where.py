"""`moonpool where` and `moonpool bridge`: what they ask and start, and what they refuse."""

from pathlib import Path

import pytest

from moonpool.messages.errors import CallerError
from services.cli.program import build_parser, main
from services.cli.verbs.bridge import environment
from services.cli.verbs.where import parse_keys, table

HOLDER = {
    "owner": "store-1",
    "role": "store",
    "host": "h1",
    "tier": "dram",
    "prefix_blocks": 3,
    "blocks": 5,
}


def test_keys_are_32_hex_digits_each() -> None:
    assert parse_keys(["00" * 16, "ff" * 16]) == b"\0" * 16 + b"\xff" * 16
    for wrong in ("00", "zz" * 16, "00" * 17):
        with pytest.raises(CallerError, match=wrong):
            parse_keys([wrong])


@pytest.mark.parametrize("words", [[], ["00" * 16, "--prompt", "a.txt"]])
def test_one_way_to_name_the_blocks_is_needed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["where", *words]) == 1
    assert "--prompt" in capsys.readouterr().err


def test_a_file_that_is_no_list_of_tokens_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ids.json"
    for text, said in (('{"a": 1}', "not a JSON list"), ("[1", "not JSON"), ("[1]", "no block")):
        path.write_text(text)
        words = ["where", "--tokens", str(path), "--foreign", "m", "--nats", "nats://x:1"]
        assert main(words) == 1
        assert said in capsys.readouterr().err


def test_the_table_has_a_line_per_holder() -> None:
    shown = table({"blocks": 10, "holders": [HOLDER]}).splitlines()
    assert len(shown) == 2
    assert shown[1].split() == ["store-1", "store", "h1", "dram", "3/10", "5"]
    assert table({"blocks": 10, "holders": []}) == "nobody holds any of 10 blocks"


def test_the_bridge_is_started_with_what_was_named() -> None:
    given = build_parser().parse_args(
        ["bridge", "vllm", "--endpoint", "tcp://h:5557", "--model", "m", "--nats", "nats://n:1"]
    )
    assert environment(given) == {
        "MOONPOOL_NATS_URL": "nats://n:1",
        "MOONPOOL_MESH": "mp",
        "MOONPOOL_BRIDGE_ENDPOINT": "tcp://h:5557",
        "MOONPOOL_BRIDGE_MODEL": "m",
    }
