"""Whatever dies, refuses, stalls or goes: the answer goes on, or ends with one clear error."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from moonpool.messages.errors import Blame, ErrorInfo
from services.gateway.core import watch
from tests.support.until import until
from tests.unit.gateway.house import ANSWER, House, answer_tokens, open_house, pair
from tests.unit.gateway.scripts import BLOCK_TOKENS, MODEL, Instance, refusal

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def _pings_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PING_AFTER_S", 0.05)


def four() -> tuple[Instance, ...]:
    return (*pair(), Instance("p2", "prefill"), Instance("d2", "decode"))


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def streamed(house: House, **fields: Any) -> list[Any]:
    return [
        json.loads(e)
        for e in await house.events("/v1/chat/completions", CHAT | fields)
        if e[0] == "{"
    ]


MIDDLE = len(answer_tokens()) // 2


@pytest.mark.parametrize("way", ["dies_before", "fails_before"])
@pytest.mark.parametrize(
    ("who", "index"), [("p1", 0), ("d1", 1), ("d1", MIDDLE), ("d1", len(answer_tokens()) - 1)]
)
async def test_an_answer_goes_on_where_an_instance_was_lost(way: str, who: str, index: int) -> None:
    async with open_house(*four()) as house:
        setattr(house.mesh.instances[who], way, index)
        events = await streamed(house, stream_options={"include_usage": True})
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
        assert text == ANSWER
        assert events[-1]["usage"]["completion_tokens"] == len(answer_tokens())
        again = house.mesh.instances["p2" if who == "p1" else "p1"].submits[-1]
        assert again.attempt == 1
        assert again.output_start == house.mesh.plans[0].prompt_tokens
        assert len(again.tokens) // 4 == again.output_start + index
        assert len(again.keys) // 16 == len(again.tokens) // 4 // BLOCK_TOKENS
        assert house.mesh.plans[1].exclude == (who,)
        await house.empties()


async def test_a_seed_not_given_is_drawn_once_and_kept_by_later_attempts() -> None:
    async with open_house(*four()) as house:
        house.mesh.instances["d1"].fails_before = 2
        await streamed(house)
        first, second = house.mesh.instances["p1"].submits
        assert first.sampling.seed == second.sampling.seed > 0


async def test_a_stalled_decode_is_left_although_it_answers_pings() -> None:
    async with open_house(*four(), token_silence_s=0.3) as house:
        house.mesh.instances["d1"].stalls_before = 3
        assert text_of(await house.chat()) == ANSWER
        await until(lambda: bool(house.mesh.instances["d1"].cancels))
        await house.empties()


async def test_a_prefill_with_a_long_queue_is_waited_for() -> None:
    async with open_house(token_silence_s=0.2) as house:
        house.mesh.instances["p1"].token_wait_s = 0.6
        assert text_of(await house.chat()) == ANSWER
        assert len(house.mesh.plans) == 1


async def test_events_that_come_twice_count_once() -> None:
    async with open_house() as house:
        for instance in house.mesh.instances.values():
            instance.repeats = True
        assert text_of(await house.chat()) == ANSWER


async def test_a_refused_reservation_is_tried_elsewhere() -> None:
    async with open_house(*four()) as house:
        house.mesh.instances["d1"].refuse = refusal("kv_space")
        assert text_of(await house.chat()) == ANSWER
        assert house.mesh.plans[1].exclude == ("d1",)
        assert not house.mesh.instances["p2"].submits


async def test_a_refused_submit_frees_the_reservation_at_once() -> None:
    async with open_house(*four()) as house:
        house.mesh.instances["p1"].refuse = refusal("queue_full")
        assert text_of(await house.chat()) == ANSWER
        await until(lambda: bool(house.mesh.instances["d1"].cancels))
        freed = house.mesh.instances["d1"].cancels[0]
        assert (freed.attempt, freed.writer_stopped) == (0, True)


async def test_when_every_decode_is_full_the_client_is_told_to_come_back() -> None:
    async with open_house() as house:
        house.mesh.instances["d1"].refuse = refusal("kv_space", retry_after_s=4.0)
        response = await house.chat()
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "kv_space"
        assert response.headers["retry-after"] == "4"
        await house.empties()


async def test_a_colocated_instance_is_asked_without_a_reservation() -> None:
    async with open_house(Instance("w1", "colocated")) as house:
        assert text_of(await house.chat()) == ANSWER
        assert house.mesh.instances["w1"].submits[0].reservation is None


async def test_an_answer_waits_for_an_instance_that_comes_back() -> None:
    async with open_house(token_silence_s=5.0) as house:
        decode = house.mesh.instances["d1"]
        decode.dies_before = 4
        asking = asyncio.create_task(house.chat())
        await until(lambda: decode.service is None)
        await until(lambda: len(house.mesh.plans) > 1)
        await house.mesh.join(Instance("d1", "decode", epoch="2"))
        assert text_of(await asking) == ANSWER
        await house.empties()


async def test_an_answer_that_nobody_can_finish_ends_with_one_error() -> None:
    async with open_house(token_silence_s=0.3) as house:
        house.mesh.instances["d1"].dies_before = 4
        events = await streamed(house)
        assert events[-1]["error"]["code"] == "instance_lost"
        assert sum("error" in event for event in events) == 1
        await house.empties()


async def test_without_a_conductor_the_client_is_told() -> None:
    async with open_house() as house:
        assert house.mesh.conductor is not None
        await house.mesh.conductor.close()
        response = await house.chat()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_conductor"
        assert "retry-after" in response.headers
        await house.empties()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_deadline_ends_a_request(stream: bool) -> None:
    async with open_house(request_deadline_s=0.4) as house:
        house.mesh.instances["p1"].stalls_before = 0
        response = await house.chat(stream=stream)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        await until(lambda: bool(house.mesh.instances["p1"].cancels))
        await house.empties()


async def test_the_deadline_ends_an_answer_that_keeps_flowing() -> None:
    async with open_house(request_deadline_s=0.4) as house:
        house.mesh.instances["d1"].token_wait_s = 0.03
        events = await streamed(house)
        assert events[-1]["error"]["code"] == "deadline_exceeded"


async def test_an_error_for_good_is_not_tried_elsewhere() -> None:
    async with open_house(*four()) as house:
        house.mesh.instances["p1"].fails_before = 0
        house.mesh.instances["p1"].failure = ErrorInfo("deadline", Blame.CAPACITY, "too late")
        response = await house.chat()
        assert response.status_code == 504
        assert len(house.mesh.plans) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("before", [0, 4])
async def test_a_client_that_goes_frees_everything(stream: bool, before: int) -> None:
    async with open_house(port=True) as house:
        prefill, decode = house.mesh.instances["p1"], house.mesh.instances["d1"]
        (prefill if before == 0 else decode).stalls_before = before
        async with httpx.AsyncClient(base_url=house.url) as client:
            body = CHAT | {"stream": stream}
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await until(lambda: bool(prefill.submits))
            if before:
                await until(lambda: any(f.life.text.output for f in house.gateway.mesh.flights))
            asking.cancel()
            await asyncio.wait([asking])
        await until(lambda: bool(decode.cancels))
        await house.empties()
        assert not decode.cancels[0].writer_stopped
        await until(lambda: bool(house.audited()))
        assert house.audited()[0]["outcome"] == "cancelled"


async def test_half_of_many_clients_go_and_the_others_get_their_answers() -> None:
    async with open_house(port=True) as house:
        house.mesh.instances["d1"].token_wait_s = 0.01

        async def one(goes: bool) -> str:
            async with httpx.AsyncClient(base_url=house.url) as client:
                sent = client.post("/v1/chat/completions", json=CHAT | {"stream": False})
                if not goes:
                    return text_of(await sent)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await sent
                return ANSWER

        answers = await asyncio.gather(*(one(at % 2 == 0) for at in range(32)))
        assert answers == [ANSWER] * 32
        await house.empties()
