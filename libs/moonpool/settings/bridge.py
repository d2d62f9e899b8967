"""Settings of the bridge to engines that are not ours."""

from pydantic import Field

from moonpool.settings.base import CommonSettings


class BridgeSettings(CommonSettings):
    bridge_endpoint: str = Field(
        "", description="ZMQ address of the engine's KV events, like tcp://HOST:5557."
    )
    bridge_replay_endpoint: str = Field(
        "", description="ZMQ address at which it replays missed events; empty: it does not."
    )
    bridge_topic: str = Field("", description="Topic of the events; empty: all.")
    bridge_model: str = Field("", description="Model that the engine serves, as routers name it.")
    bridge_engine_url: str = Field(
        "",
        description="The engine's HTTP address, told to routers; its /health says whether what it "
        "holds can be counted on. Empty: not asked.",
    )
