"""Settings of the conductor."""

from typing import Literal

from pydantic import Field

from moonpool.settings.base import CommonSettings


class ConductorSettings(CommonSettings):
    slo_ttft_s: float = Field(
        30.0, gt=0, description="Time to first token that admission promises."
    )
    slo_tbt_s: float = Field(0.5, gt=0, description="Time between tokens that admission promises.")
    suspect_after_s: float = Field(
        3.0, gt=0, description="Silence after which nobody is sent there."
    )
    dead_after_s: float = Field(
        30.0, gt=0, description="Silence after which its blocks are erased."
    )
    scheduling: Literal[
        "ours", "random", "load-balance", "longest-prefix", "local-naive", "local", "global"
    ] = Field("ours", description="Scheduling policy; all but `ours` are there to compare with.")
    role_switching: bool = Field(
        False,
        description="Tell colocated instances to prefill or to decode only while that side is "
        "short and the other has room, and to do both again when it is not.",
    )
    balancing: bool = Field(
        False,
        description="Copy hot prefixes to more nodes in the background while that saves more time "
        "than it takes, and let such copies go when nobody reads them.",
    )
    admission: Literal["ours", "none", "baseline", "early", "predicted"] = Field(
        "ours", description="Who is refused under overload; all but `ours` are there to compare."
    )
    balancing_threshold: float = Field(
        1.0,
        ge=1,
        description="Of `global`: fetch when the best prefix is this factor longer than the own.",
    )
