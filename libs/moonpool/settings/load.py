"""Which settings exist, and how a service reads its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from moonpool.settings.base import PREFIX, CommonSettings, SettingsError, read_settings
from moonpool.settings.bridge import BridgeSettings
from moonpool.settings.conductor import ConductorSettings
from moonpool.settings.exporter import ExporterSettings
from moonpool.settings.gateway import GatewaySettings
from moonpool.settings.store import StoreSettings
from moonpool.settings.worker import WorkerSettings

ALL_SETTINGS: tuple[type[CommonSettings], ...] = (
    CommonSettings,
    GatewaySettings,
    ConductorSettings,
    WorkerSettings,
    StoreSettings,
    ExporterSettings,
    BridgeSettings,
)

S = TypeVar("S", bound=CommonSettings)


def known_names() -> frozenset[str]:
    """Field names of all services' settings."""
    return frozenset(name for each in ALL_SETTINGS for name in each.model_fields)


def load_settings(kind: type[S], environ: Mapping[str, str]) -> S:
    """`kind` read from `environ`. Raises SettingsError, which names the variable."""
    known = known_names()
    return read_settings(kind, _with_files(environ, known), known)


def _with_files(environ: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """`MOONPOOL_X_FILE` replaced by `MOONPOOL_X` with what the file holds, so that a secret need
    not stand in an environment. Raises SettingsError."""
    found = dict(environ)
    for name, path in environ.items():
        target = name.removesuffix("_FILE")
        field = target.removeprefix(PREFIX).lower()
        is_setting = name.removeprefix(PREFIX).lower() in known
        if target == name or not name.startswith(PREFIX) or is_setting or field not in known:
            continue
        if target in environ:
            raise SettingsError(f"{name} and {target} are both set: choose one")
        try:
            found[target] = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise SettingsError(f"{name}={path!r}: {why}") from error
        del found[name]
    return found
