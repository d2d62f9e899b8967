"""Settings of the gateway."""

from pydantic import Field

from moonpool.settings.base import CommonSettings


class GatewaySettings(CommonSettings):
    http_host: str = Field("127.0.0.1", description="Address of the REST API.")
    http_port: int = Field(
        8080, ge=0, le=65535, description="Port of the REST API; 0: any free one."
    )
    model: str = Field("smollm2-135m-instruct", description="Hugging Face id or local folder.")
    model_name: str = Field("", description="Name that users ask for; empty: from the model.")
    api_keys: str = Field(
        "", description="`key=tenant` pairs, comma-separated; empty: no key asked, tenant `public`."
    )
    tenant_limits: str = Field(
        "",
        description="`tenant: weight=W priority=P ttft=S tbt=S; ..`: share of queues next to other "
        "tenants, highest priority (high, normal, low) and tightest promises that its requests may "
        "ask for; tenant `*`: everybody else; empty: weight 1, normal, any.",
    )
    secret: str = Field("", description="Isolates tenants' blocks; gateways of a mesh share it.")
    body_max_bytes: int = Field(8 << 20, gt=0, description="Largest request body.")
    request_deadline_s: float = Field(600.0, gt=0, description="A request is cut off after it.")
    token_silence_s: float = Field(
        20.0,
        gt=0,
        description="Silence of an instance after which its answer is continued elsewhere.",
    )
    audit_blocks: bool = Field(
        False,
        description="Audit events name the blocks of prompts, one-way: `moonpool trace export`.",
    )
    attempts_max: int = Field(4, ge=1, description="Instances tried for one request.")
