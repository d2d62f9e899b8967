"""Meshes of other shapes: one colocated worker, and instances that do not belong together."""

import httpx
import pytest

from services.cli.mesh.errors import ServiceFailed
from services.cli.mesh.local import LocalMesh
from tests.support.prompts import all_prompts
from tests.support.reference import Reference

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TOKENS = 12


async def test_a_colocated_worker_says_the_same_and_hits_its_own_cache(
    reference: Reference,
) -> None:
    shape = {"prefill": 0, "decode": 0, "store": 0, "colocated": 1}
    async with (
        LocalMesh(**shape, dtype="float32") as mesh,
        httpx.AsyncClient(timeout=120.0) as client,
    ):
        for name, prompt in list(all_prompts(reference).items())[::2]:
            want = reference.text(reference.tokens(prompt, TOKENS))
            for again in (False, True):
                reply = await client.post(
                    f"{mesh.url}/v1/completions",
                    json={
                        "model": mesh.model_name,
                        "prompt": prompt,
                        "max_tokens": TOKENS,
                        "temperature": 0,
                    },
                )
                body = reply.json()
                assert body["choices"][0]["text"] == want, name
                if again:
                    cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
                    assert cached == (len(prompt) - 1) // 64 * 64, name


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [("MOONPOOL_BLOCK_TOKENS", "32", "block_tokens"), ("MOONPOOL_DTYPE", "bfloat16", "dtype")],
)
async def test_an_instance_that_differs_is_refused_by_name_at_registration(
    setting: str, value: str, said: str
) -> None:
    other = {"decode-1": {setting: value, "MOONPOOL_ID": "odd-one"}}
    mesh = LocalMesh(
        prefill=1, decode=1, store=0, dtype="float32", service_env=other, ready_within_s=180.0
    )
    with pytest.raises(ServiceFailed) as failed:
        async with mesh:
            raise AssertionError("a mesh of two layouts must not become ready")
    assert said in str(failed.value)
