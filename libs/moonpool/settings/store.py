"""Settings of store nodes."""

from typing import Literal

from pydantic import Field

from moonpool.settings.base import CommonSettings


class StoreSettings(CommonSettings):
    dram_bytes: int = Field(1 << 30, gt=0, description="Shared-memory segment of the dram tier.")
    put_ttl_s: float = Field(30.0, gt=0, description="An unfinished put is reclaimed after it.")
    lease_max_s: float = Field(60.0, gt=0, description="Longest lease that a reader can ask for.")
    headroom: float = Field(
        0.2, ge=0, lt=1, description="Share of the dram tier kept free for bursts of puts."
    )
    eviction: str = Field(
        "lru",
        description="Who goes when room is needed: lru, or ours, which learns from reuse; to "
        "compare: fifo, lfu, sieve, s3fifo, arc, wtinylfu.",
    )
    store_http_port: int = Field(
        0, ge=0, le=65535, description="Port of the store's HTTP face, /store/..; 0: none."
    )
    store_http_host: str = Field("127.0.0.1", description="Address of the store's HTTP face.")
    store_http_keys: str = Field(
        "",
        description="`key=tenant` pairs for the store's HTTP face, comma-separated, keys of 8 "
        "characters or more; empty: no key asked, tenant `public`.",
    )
    dram_keep_dir: str = Field(
        "",
        description="Folder where a clean stop keeps what dram holds, for the next start: on a "
        "memory disk (/dev/shm) or a fast disk, with room for it; empty: dram starts empty.",
    )
    demote_after_uses: int = Field(
        2,
        ge=1,
        description="Uses, the put included, before a block is worth a write to a lower tier.",
    )
    demote_by: Literal["uses", "sketch", "reuse", "all"] = Field(
        "uses",
        description="What is worth a write to a lower tier: uses, counted per block; sketch, "
        "counted roughly in a third of the memory; reuse, what is likely to be used again soon "
        "(fewest writes); all.",
    )
    nvme_dir: str = Field(
        "", description="Folder on a fast disk for the nvme tier; empty: no such tier."
    )
    nvme_bytes: int = Field(
        8 << 30, gt=0, description="Of the nvme tier; taken from the disk at once."
    )
    nvme_fills_per_day: float = Field(
        0.0,
        ge=0,
        description="How often a day the nvme tier may be written full, to spare the disk; "
        "0: no limit.",
    )
    oss_endpoint: str = Field(
        "", description="URL of an S3-compatible server for the oss tier; empty: no such tier."
    )
    oss_bucket: str = Field("kvcache", description="Bucket of the oss tier; it must exist.")
    oss_access_key: str = Field("", description="Access key for the bucket.")
    oss_secret_key: str = Field("", description="Secret key for the bucket.")
    oss_region: str = Field("us-east-1", description="Region that requests are signed for.")
    oss_bytes: int = Field(64 << 30, gt=0, description="Budget of the oss tier in the bucket.")
