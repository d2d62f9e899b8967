"""From a shape to processes: command lines, environments, addresses."""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.mesh import ports
from services.cli.mesh.child import Child
from services.cli.mesh.servers import HOST, S3Ports, nats_command, s3_command
from services.cli.mesh.shape import MeshShape
from services.cli.mesh.state import StateFolder

BUCKET = "kvcache"


@dataclass(slots=True)
class Sites:
    """Addresses of a mesh; a port of 0 becomes a free one in `choose`."""

    port: int = 0
    nats_port: int = 0
    s3: bool = False
    api_ports: list[int] = field(default_factory=list)
    s3_ports: S3Ports | None = None
    s3_access_key: str = ""
    s3_secret_key: str = ""

    def choose(self, gateways: int) -> None:
        free = ports.free_ports(gateways + 9)
        self.api_ports = [self.port or free.pop(), *(free.pop() for _ in range(gateways - 1))]
        self.nats_port = self.nats_port or free.pop()
        if self.s3:
            self.s3_ports = S3Ports(*(free.pop() for _ in range(8)))
            self.s3_access_key = secrets.token_hex(10)
            self.s3_secret_key = secrets.token_urlsafe(30)

    @property
    def api_urls(self) -> list[str]:
        return [f"http://{HOST}:{port}" for port in self.api_ports]

    @property
    def nats_url(self) -> str:
        return f"nats://{HOST}:{self.nats_port}"

    @property
    def s3_url(self) -> str:
        return f"http://{HOST}:{self.s3_ports.s3}" if self.s3_ports else ""


@dataclass(frozen=True, slots=True)
class Builder:
    shape: MeshShape
    sites: Sites
    state: StateFolder
    run_dir: Path
    env: Mapping[str, str]
    service_env: Mapping[str, Mapping[str, str]]

    def servers(self) -> Iterator[Child]:
        """NATS, and S3 when asked for."""
        plain = self._inherited()
        command = nats_command(self.sites.nats_port, self.state.folder("nats"))
        yield Child("nats", "server", command, plain, self.state.logs / "nats.log")
        if self.sites.s3_ports is not None:
            keys = {
                "AWS_ACCESS_KEY_ID": self.sites.s3_access_key,
                "AWS_SECRET_ACCESS_KEY": self.sites.s3_secret_key,
                "S3_BUCKET": BUCKET,
            }
            command = s3_command(self.sites.s3_ports, self.state.folder("s3"), self.run_dir)
            yield Child("s3", "server", command, plain | keys, self.state.logs / "s3.log")

    def services(self) -> Iterator[Child]:
        gateways = iter(self.sites.api_ports)
        common = self._common()
        for name, role in self.shape.names():
            env = common | {"MOONPOOL_ID": name}
            if role == "gateway":
                env["MOONPOOL_HTTP_PORT"] = str(next(gateways))
            elif role == "store" and self.sites.s3_url:
                env |= self._bucket()
            env |= self.service_env.get(name, {})
            command = [sys.executable, "-m", f"services.{role}"]
            yield Child(name, role, command, env, self.state.logs / f"{name}.log")

    def _common(self) -> dict[str, str]:
        model = self.shape.model
        if Path(model).expanduser().is_dir():
            model = str(Path(model).expanduser().resolve())
        return {
            **self._inherited(),
            "HF_HUB_OFFLINE": "1",  # fetched before: no service asks the hub again
            "PYTHONUNBUFFERED": "1",
            "MOONPOOL_SECRET": secrets.token_hex(16),
            **self.env,
            "MOONPOOL_NATS_URL": self.sites.nats_url,
            "MOONPOOL_RUN_DIR": str(self.run_dir),
            "MOONPOOL_MODEL": model,
            "MOONPOOL_DTYPE": self.shape.dtype,
        }

    def _bucket(self) -> dict[str, str]:
        """The bucket that came along, unless our user has one of his own."""
        if "MOONPOOL_OSS_ENDPOINT" in self.env:
            return {}
        return {
            "MOONPOOL_OSS_ENDPOINT": self.sites.s3_url,
            "MOONPOOL_OSS_BUCKET": BUCKET,
            "MOONPOOL_OSS_ACCESS_KEY": self.sites.s3_access_key,
            "MOONPOOL_OSS_SECRET_KEY": self.sites.s3_secret_key,
        }

    @staticmethod
    def _inherited() -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if not k.startswith("MOONPOOL_")}
