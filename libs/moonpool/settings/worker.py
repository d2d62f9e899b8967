"""Settings of instances: prefill, decode and colocated."""

from typing import Literal

from pydantic import Field

from moonpool.settings.base import CommonSettings


class WorkerSettings(CommonSettings):
    model: str = Field("smollm2-135m-instruct", description="Hugging Face id or local folder.")
    model_name: str = Field("", description="Name that users ask for; empty: from the model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Of weights and KV; auto: as the model's own configuration says."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:N; auto: cuda when present.")
    threads: int = Field(0, ge=0, description="Compute threads; 0: all cores.")
    block_tokens: int = Field(64, description="Tokens per KV block, a power of two in 16..512.")
    kv_pool_bytes: int = Field(
        1 << 30, gt=0, description="Device KV pool of an instance, in bytes."
    )
    eviction: str = Field(
        "lru",
        description="Who goes when room is needed: lru, or ours, which learns from reuse; to "
        "compare: fifo, lfu, sieve, s3fifo, arc, wtinylfu.",
    )
    chunk_tokens: int = Field(
        512, ge=16, description="Prompt tokens per prefill step; rounded down to whole blocks."
    )
    sequences_max: int = Field(64, ge=1, description="Sequences that a decode runs at once.")
    step_stall_s: int = Field(
        120,
        ge=5,
        description="An engine step that takes longer hangs: the process ends, to be replaced.",
    )
    queue_max: int = Field(
        256, ge=1, description="Prompts that wait in a prefill before it refuses."
    )
