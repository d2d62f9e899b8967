"""Settings of store nodes."""

from pydantic import Field

from moonpool.settings.base import CommonSettings


class StoreSettings(CommonSettings):
    dram_bytes: int = Field(1 << 30, gt=0, description="Shared-memory segment of the dram tier.")
    put_ttl_s: float = Field(30.0, gt=0, description="An unfinished put is reclaimed after it.")
    lease_max_s: float = Field(60.0, gt=0, description="Longest lease that a reader can ask for.")
