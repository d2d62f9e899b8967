"""`moonpool advise`: what it shows."""

import pytest

from moonpool.messages.advice import AdviceReply, ModelAdvice, SideAdvice
from services.cli.program import main
from services.cli.verbs.advise import table

SIDES = (SideAdvice("prefill", 1, 2.5, 2, 0.25), SideAdvice("decode", 2, 0.4, -1))


def test_a_line_per_side_and_the_advice() -> None:
    reply = AdviceReply("c1", 90.0, (ModelAdvice("m", SIDES, "add 2 prefill"),))
    lines = table(reply).splitlines()
    assert lines[1].split() == ["m", "prefill", "1", "2.50", "0.25"]
    assert lines[2].split() == ["m", "decode", "2", "0.40", "0.00"]
    assert lines[3] == "m: add 2 prefill"
    assert "90 s by c1" in lines[4]


def test_a_mesh_without_models_has_no_advice() -> None:
    assert "no model" in table(AdviceReply("c1", 1.0))


def test_a_role_needs_an_id_and_a_duty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--nats", "nats://x:1", "--role", "c1"]) == 1
    assert "ID=DUTY" in capsys.readouterr().err
