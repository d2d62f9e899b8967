"""Settings of the exporter."""

from pydantic import Field

from moonpool.settings.base import CommonSettings


class ExporterSettings(CommonSettings):
    exporter_host: str = Field(
        "127.0.0.1", description="Address at which Prometheus finds all services' metrics."
    )
    exporter_port: int = Field(9464, ge=0, le=65535, description="Its port; 0: any free one.")
    exporter_silence_s: float = Field(
        10.0, gt=0, description="Silence after which a service's metrics are no longer shown."
    )
