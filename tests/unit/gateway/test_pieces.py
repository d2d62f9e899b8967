"""The small parts: parameters, answers as text, accounts, who is there."""

import pytest

from moonpool.messages.errors import Blame, ErrorInfo
from moonpool.messages.plan import Plan
from moonpool.messages.registry import ModelRecord, Registration
from moonpool.messages.tokens import Timings, TokenLogprobs
from moonpool.runtime import Member
from services.gateway.core import fleet
from services.gateway.core.account import Account
from services.gateway.core.answer import Answer
from services.gateway.core.errors import BadInput, Unavailable, from_info
from services.gateway.core.fields import ChatBody, CompletionBody, read_body
from services.gateway.core.params import sampling_of
from services.gateway.text_model import TokenizerUnusable, load_text_model
from tests.unit.gateway.scripts import MODEL, RECORD
from tests.unit.gateway.tiny import tiny_text

HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


def chat(**fields: object) -> ChatBody:
    return read_body(ChatBody, HELLO | fields)


def test_a_chat_may_fill_the_context_and_a_completion_has_sixteen_tokens() -> None:
    assert sampling_of(chat(), 100, 512, 1).max_tokens == 412
    text = read_body(CompletionBody, {"model": MODEL, "prompt": "x"})
    assert sampling_of(text, 100, 512, 1).max_tokens == 16
    assert sampling_of(text, 510, 512, 1).max_tokens == 2


def test_fields_become_sampling_parameters() -> None:
    body = chat(
        temperature=0,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.2,
        seed=-1,
        max_tokens=9,
        max_completion_tokens=7,
        min_tokens=3,
        ignore_eos=True,
        stop_token_ids=[4],
        logprobs=True,
        top_logprobs=5,
    )
    params = sampling_of(body, 10, 512, 99)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 0.9, 0, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (1.0, -1.0)
    assert (params.repetition_penalty, params.seed) == (1.2, 2**63 - 1)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (7, 3, True)
    assert (params.stop_token_ids, params.logprobs) == ((4,), 5)


def test_a_seed_of_zero_is_a_seed() -> None:
    assert sampling_of(chat(seed=0), 10, 512, 99).seed == 0
    assert sampling_of(chat(), 10, 512, 99).seed == 99


def test_no_room_for_an_answer_is_told_with_the_numbers() -> None:
    with pytest.raises(BadInput, match=r"context is 512 tokens: the prompt has 512"):
        sampling_of(chat(), 512, 512, 1)


def test_a_stop_string_counts_only_after_min_tokens() -> None:
    model = tiny_text()
    ids = model.encode("dog dog dog dog", special=False).tolist()
    answer = Answer(model.detokenizer(), ["dog"], min_tokens=len(ids) - 1)
    text = answer.push(ids, []).text + answer.finish().text
    assert answer.stopped
    assert text == "dog dog dog "[: len(text)]
    assert answer.tokens == len(ids)


def test_tokens_behind_a_stop_string_do_not_count() -> None:
    model = tiny_text()
    first = model.encode("so END", special=False).tolist()
    rest = model.encode(" and more", special=False).tolist()
    answer = Answer(model.detokenizer(), ["END"], min_tokens=0)
    assert answer.push(first + rest, []).text == "so "
    assert answer.tokens == len(first)
    assert answer.stop == "END"


def test_log_probabilities_wait_for_the_text_of_their_token() -> None:
    model = tiny_text()
    ids = model.encode("🙂", special=False).tolist()
    assert len(ids) > 1
    answer = Answer(model.detokenizer(), [], min_tokens=0)
    pieces = [answer.push([id], [TokenLogprobs(-0.1)]) for id in ids]
    assert [bool(piece) for piece in pieces] == [False] * (len(ids) - 1) + [True]
    assert pieces[-1].tokens == ids
    assert len(pieces[-1].logprobs) == len(ids)


def test_an_account_tells_times_of_tokens() -> None:
    account = Account("/v1/completions", 10.0)
    assert account.plan_sent(10.5) == 0.5
    assert account.plan_sent(11.0) is None
    assert account.gave(1, 12.0) is None
    assert account.gave(2, 12.4) == pytest.approx(0.2)
    assert account.gave(1, 13.4) == pytest.approx(1.0)
    account.facts.plans.append(Plan("p1", "d1", predicted_ttft_s=1.5))  # type: ignore[arg-type]
    account.facts.timings["p1"] = Timings(queue_s=0.1, compute_s=0.3)  # type: ignore[index]
    account.tenant = "public"
    event = account.event("e1", "g1", 14.0, 1000.0)
    assert event.timings.ttft_s == 2.0
    assert event.timings.tbt_mean_s == pytest.approx(1.4 / 3)
    assert event.timings.tbt_max_s == pytest.approx(1.0)
    assert (event.timings.queue_s, event.timings.total_s) == (0.1, 4.0)
    assert event.predicted_ttft_s == 1.5


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BadInput("bad"), "refused"),
        (from_info(ErrorInfo("kv_space", Blame.CAPACITY, "full")), "refused"),
        (Unavailable("gone", code="no_instances"), "error"),
        (from_info(ErrorInfo("deadline", Blame.CAPACITY, "late")), "error"),
    ],
)
def test_an_account_tells_refusals_from_errors(error: BadInput, outcome: str) -> None:
    account = Account("/v1/completions", 0.0)
    account.failed(error)
    assert account.outcome == outcome


def member(
    id: str, role: str, *, state: str = "ready", suspect: bool = False, record: ModelRecord = RECORD
) -> Member:
    model = None if role == "conductor" else record
    who = Registration(id, role, "1", 100.0, "h", "1", model=model)
    return Member(who, state, 0.0, suspect)


def test_what_the_mesh_lacks_is_named() -> None:
    conductor, prefill = member("c", "conductor"), member("p", "prefill")
    decode, worker = member("d", "decode"), member("w", "colocated")
    assert fleet.missing([], MODEL) == ["no conductor", "no prefill instance", "no decode instance"]
    assert fleet.missing([conductor, prefill], MODEL) == ["no decode instance"]
    assert fleet.missing([conductor, prefill, decode], MODEL) == []
    assert fleet.missing([conductor, worker], MODEL) == []
    assert fleet.missing([conductor, member("w", "colocated", suspect=True)], MODEL)
    assert fleet.missing([conductor, worker], "another") != []


def test_suspects_still_say_what_a_model_is_and_beginners_do_not() -> None:
    assert fleet.record_of([member("p", "prefill", suspect=True)], MODEL) == RECORD
    assert fleet.record_of([member("p", "prefill", state="starting")], MODEL) is None
    assert fleet.models_of([member("p", "prefill")]) == {MODEL: 100.0}


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: object) -> None:
    with pytest.raises(TokenizerUnusable, match="no tokenizer can be read"):
        load_text_model(tmp_path)  # type: ignore[arg-type]
