"""Equal is equal; a difference is let pass only where it is proven to be a near tie."""

import json
import math
from pathlib import Path

import pytest

from services.cli.verify import BUILTIN, Output, Position, Report, compare, read_prompts, render
from services.cli.verify.compare import resolvable_gap
from services.cli.verify.prompts import BadPrompts


def make_position(token: str = "a", best: float = 20.0, **rivals: float) -> Position:
    logits = {token: best, **rivals}
    return Position(ord(token), token, {t: v - best for t, v in logits.items()}, logits, best)


def make_output(*texts: str, drift: float = 0.0) -> Output:
    return Output(texts, [drift] * len(texts), [{text: drift} for text in texts])


def test_equal_outputs_are_equal_and_their_drift_is_measured() -> None:
    reference = [make_position("a"), make_position("b")]
    verdict = compare("p", "cold", reference, make_output("a", "b", drift=0.01), "float32")
    assert verdict.ok
    assert verdict.equal
    assert verdict.compared == 2
    assert verdict.logprob_difference_max == pytest.approx(0.01)


def test_in_full_precision_no_difference_is_let_pass() -> None:
    reference = [make_position("a", b=20.0 - 1e-6)]
    verdict = compare("p", "cold", reference, make_output("b"), "float32")
    assert verdict.first_difference == 0
    assert not verdict.ok


def test_in_half_precision_a_difference_at_a_near_tie_is_let_pass() -> None:
    reference = [make_position("a"), make_position("a", b=19.9)]
    verdict = compare("p", "cold", reference, make_output("a", "b"), "bfloat16")
    assert verdict.first_difference == 1
    assert verdict.gap == pytest.approx(0.1)
    assert verdict.near_tie
    assert verdict.ok


def test_in_half_precision_a_difference_far_from_a_tie_is_not() -> None:
    verdict = compare("p", "cold", [make_position("a", b=19.0)], make_output("b"), "bfloat16")
    assert not verdict.ok


def test_a_token_that_the_reference_does_not_even_list_is_no_tie() -> None:
    verdict = compare("p", "cold", [make_position("a")], make_output("z"), "bfloat16")
    assert verdict.gap == math.inf
    assert not verdict.ok


def test_an_output_that_ends_early_is_different() -> None:
    reference = [make_position("a"), make_position("b")]
    assert not compare("p", "cold", reference, make_output("a"), "bfloat16").ok


def test_ids_decide_where_the_gateway_tells_them() -> None:
    told = Output(["a"], [0.0], [{}], tokens=[999])
    assert not compare("p", "cold", [make_position("a")], told, "float32").ok


@pytest.mark.parametrize(
    ("logit", "dtype", "gap"),
    [(16.0, "bfloat16", 0.125), (31.9, "bfloat16", 0.125), (-3.0, "float16", 2.0**-9)],
)
def test_the_resolvable_gap_is_the_spacing_of_numbers_there(
    logit: float, dtype: str, gap: float
) -> None:
    assert resolvable_gap(logit, dtype) == gap


def test_a_report_counts_near_ties_and_names_differences() -> None:
    tie = compare("tie", "cold", [make_position("a", b=19.9)], make_output("b"), "bfloat16")
    same = compare("same", "cold", [make_position("a")], make_output("a"), "bfloat16")
    report = Report("m", "bfloat16", [tie, same])
    assert report.equal
    assert json.loads(report.as_json())["near_ties"] == 1
    assert "transformers 'a', mesh 'b'" in render(report)


def test_prompts_are_read_as_text_and_as_json(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    turn = {"messages": [{"role": "user", "content": "hi"}]}
    path.write_text(f'plain text\n\n{{"prompt": "quoted"}}\n{json.dumps(turn)}\n')
    contents = [prompt.messages[0]["content"] for prompt in read_prompts(path)]
    assert contents == ["plain text", "quoted", "hi"]


@pytest.mark.parametrize("text", ["", "{broken", '{"messages": []}', '{"messages": ["hi"]}'])
def test_bad_prompts_are_named_by_file_and_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(text)
    with pytest.raises(BadPrompts, match=r"prompts\.txt"):
        read_prompts(path)


def test_the_built_in_prompts_differ_in_kind() -> None:
    assert len({prompt.name for prompt in BUILTIN}) == len(BUILTIN) >= 8
    assert any(len(prompt.messages) > 1 for prompt in BUILTIN)
