"""A service's transfer engine, as its settings say."""

from pathlib import Path
from typing import TypeVar

from moonpool.runtime.context import ServiceContext
from moonpool.runtime.identity import advertise_host
from moonpool.settings import PREFIX, CommonSettings, SettingsError
from moonpool.transfer import TlsFiles, TransferEngine
from moonpool.transfer.topology import load

S = TypeVar("S", bound=CommonSettings)


async def start_transfer(
    ctx: ServiceContext[S], run_dir: str | Path, *, name: str = ""
) -> TransferEngine:
    """Listens and is ready; the caller closes it. `name`: a process's id unless it has a second
    one. Raises BadTransfer, BadTopology,
    SettingsError."""
    settings = ctx.settings
    return await TransferEngine.start(
        name or ctx.id,
        host_id=ctx.host_id,
        run_dir=run_dir,
        listen_host=settings.listen_host,
        advertise_host=advertise_host(settings.advertise_host),
        rdma_device=settings.rdma_device,
        checksum=settings.transfer_checksum,
        tls=tls_files(settings),
        topology=load(settings.topology),
        endpoints_max=settings.transfer_endpoints_max,
        look_out=settings.transfer_look_out,
    )


def tls_files(settings: CommonSettings) -> TlsFiles | None:
    """None when no tls is asked for. Raises SettingsError when only a part of it is."""
    given = (settings.transfer_tls_cert, settings.transfer_tls_key, settings.transfer_tls_ca)
    if not any(given):
        return None
    if not all(given):
        names = ", ".join(f"{PREFIX}TRANSFER_TLS_{each}" for each in ("CERT", "KEY", "CA"))
        raise SettingsError(f"{names}: tls needs all three")
    return TlsFiles(*given)
