"""`POST /v1/where`: a tenant's own blocks, and nobody else's."""

from moonpool.bus import Endpoint, MemoryBus
from moonpool.kv import block_keys, chain_root, isolation_salt, pack_keys
from moonpool.messages.codec import decode, encode
from moonpool.messages.where import Holder, WhereReply, WhereRequest
from tests.unit.gateway.house import House, open_house
from tests.unit.gateway.scripts import BLOCK_TOKENS, FINGERPRINT, MODEL
from tests.unit.gateway.tiny import tiny_text

PROMPT = "the quick brown fox jumps over the lazy dog " * 4
HOLDER = Holder("store-1", "store", "h1", "dram", 2, 3)
ALPHA = {"authorization": "Bearer sk-alpha-key"}


async def listen(house: House, asked: list[bytes]) -> MemoryBus:
    """A conductor that knows one holder of whatever it is asked for."""

    async def answer(payload: bytes) -> bytes:
        keys = decode(payload, WhereRequest).keys
        asked.append(keys)
        return encode(WhereReply("c9", len(keys) // 16, (HOLDER,)))

    bus = MemoryBus(house.mesh.broker)
    subject = house.gateway.context.subjects.where
    await bus.serve("conductor", "c9", "1", [Endpoint("where", subject, answer)])
    return bus


async def test_holders_of_the_callers_own_blocks() -> None:
    async with open_house(api_keys="sk-alpha-key=alpha", secret="s") as house:
        asked: list[bytes] = []
        bus = await listen(house, asked)
        body = {"model": MODEL, "prompt": PROMPT}
        answer = await house.http.post("/v1/where", json=body, headers=ALPHA)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        tokens = tiny_text().encode(PROMPT, special=True)
        root = chain_root(FINGERPRINT, isolation_salt(b"s", "alpha", ""))
        assert asked == [pack_keys(block_keys(root, tokens, BLOCK_TOKENS))]
        assert told["prompt_tokens"] == len(tokens)
        assert told["blocks"] == len(tokens) // BLOCK_TOKENS
        assert told["holders"][0] == {
            "owner": "store-1",
            "role": "store",
            "host": "h1",
            "tier": "dram",
            "prefix_blocks": 2,
            "blocks": 3,
        }
        chat = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
        assert (await house.http.post("/v1/where", json=chat, headers=ALPHA)).status_code == 200
        assert asked[0] != asked[1]
        await bus.close()


async def test_bad_questions_have_the_apis_errors() -> None:
    async with open_house(api_keys="sk-alpha-key=alpha", secret="s") as house:
        body = {"model": MODEL, "prompt": PROMPT}
        assert (await house.http.post("/v1/where", json=body)).status_code == 401
        for wrong in ({"model": MODEL}, {"model": MODEL, "prompt": 7}):
            answer = await house.http.post("/v1/where", json=wrong, headers=ALPHA)
            assert answer.status_code == 400
        away = await house.http.post("/v1/where", json=body, headers=ALPHA)
        assert (away.status_code, away.json()["error"]["code"]) == (503, "no_conductor")


async def test_a_prompt_without_a_full_block_has_no_holders() -> None:
    async with open_house() as house:
        answer = await house.http.post("/v1/where", json={"model": MODEL, "prompt": "hi"})
        assert (answer.json()["blocks"], answer.json()["holders"]) == (0, [])
