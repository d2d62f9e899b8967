"""How settings are read: `MOONPOOL_*` variables into one frozen object per service, once, at start.

A value that does not fit, or a `MOONPOOL_*` name that no service knows, stops the start and names
itself. Field descriptions are the only documentation: docs/configuration.md is generated from them.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moonpool.messages.errors import CallerError

PREFIX = "MOONPOOL_"


class SettingsError(CallerError):
    """A variable is unknown or has a bad value; the message names it and says what fits."""

    code = "bad_settings"


class CommonSettings(BaseModel):
    """What every service needs. Field `nats_url` is read from `MOONPOOL_NATS_URL`, and so on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field("", description="Name on the mesh; empty: role and a random suffix.")
    nats_url: str = Field(
        "nats://127.0.0.1:4222", description="The NATS server(s), comma-separated."
    )
    nats_user: str = Field(
        "",
        description="User for NATS, when it asks for one; replies then come on `_INBOX_<user>.>`.",
    )
    nats_password: str = Field("", description="Password for NATS.")
    mesh: str = Field("mp", description="Subject prefix; several meshes can share one NATS.")
    host_id: str = Field(
        "",
        description="Processes with the same host id try shared memory; empty: the machine's id.",
    )
    rack: str = Field(
        "", description="Name of the rack, or of whatever shares a switch; empty: not told."
    )
    zone: str = Field(
        "",
        description="Name of the zone: links between zones count as slow until they are measured.",
    )
    run_dir: str = Field(
        "",
        description="Folder for Unix sockets of the shm transport; empty: one made for this run.",
    )
    listen_host: str = Field(
        "127.0.0.1",
        description="Address or interface that the tcp transport listens on; several with commas "
        "between are NICs that share the work, and stand in for one another.",
    )
    advertise_host: str = Field(
        "",
        description="Name or address at which peers reach the tcp transport; `hostname`: this "
        "machine's host name, which stays right when its address changes; empty: the address "
        "listened on. One for each of several.",
    )
    rdma_device: str = Field(
        "",
        description="RDMA adapters to use, as device, device:port or device:port:gid, with commas "
        "between; empty: all that are active, and none is needed.",
    )
    transfer_tls_cert: str = Field(
        "",
        description="PEM file of our certificate, for tls on the tcp transport, with the two "
        "below; then both sides must show one. All three empty: no tls.",
    )
    transfer_tls_key: str = Field("", description="PEM file of the certificate's key.")
    transfer_tls_ca: str = Field(
        "", description="PEM file of the authority that signs every certificate of the mesh."
    )
    transfer_checksum: bool = Field(
        False,
        description="Compare checksums of every transfer on its way, over transports that can "
        "(shm, tcp); rdma is then not used.",
    )
    transfer_look_out: bool = Field(
        True,
        description="Small transfers over tcp look for what is expected within 0.1 ms before they "
        "sleep, where no one else wants the CPU; false: they always sleep, and no thread keeps to "
        "a CPU.",
    )
    transfer_endpoints_max: int = Field(
        0,
        ge=0,
        description="Peers that each transport is connected to at once; beyond it the least useful "
        "connection closes when it is idle. 0: 256.",
    )
    topology: str = Field(
        "",
        description="Which NICs are near which memory, as Mooncake writes it: a file, or the JSON "
        'itself, {"cpu:0": [["preferred NIC"], ["other NIC"]], "cuda:0": ...}; empty: as the '
        "kernel says; `moonpool topology` shows it.",
    )
    state_file: str = Field(
        "",
        description="File that holds `starting`, `ready` or `draining`, written each second while "
        "there is a connection to NATS: for health checks; empty: none.",
    )
    cache_dir: str = Field("", description="Folder for models; empty: ~/.cache/moonpool.")
    log_level: str = Field("info", description="debug, info, warning or error.")


S = TypeVar("S", bound=CommonSettings)


def read_settings(kind: type[S], environ: Mapping[str, str], known: frozenset[str]) -> S:
    """`kind` from `environ`. `known` holds the field names of all services' settings, since one
    environment often serves them all. Raises SettingsError."""
    given = {k[len(PREFIX) :].lower(): v for k, v in environ.items() if k.startswith(PREFIX)}
    for name in sorted(given):
        if name not in known:
            raise SettingsError(f"{PREFIX}{name.upper()} is not a setting of any Moonpool service")
    values: dict[str, Any] = {k: v for k, v in given.items() if k in kind.model_fields}
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = f"{PREFIX}{str(first['loc'][0]).upper()}" if first["loc"] else PREFIX
        raise SettingsError(f"{name}={first.get('input')!r}: {first['msg']}") from error
