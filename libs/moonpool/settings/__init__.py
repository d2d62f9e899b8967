"""Every setting of every service, in one place; read once at start from `MOONPOOL_*`."""

from collections.abc import Mapping
from typing import TypeVar

from moonpool.settings.base import PREFIX, CommonSettings, SettingsError, read_settings
from moonpool.settings.conductor import ConductorSettings
from moonpool.settings.gateway import GatewaySettings
from moonpool.settings.store import StoreSettings
from moonpool.settings.worker import WorkerSettings

ALL_SETTINGS: tuple[type[CommonSettings], ...] = (
    CommonSettings,
    GatewaySettings,
    ConductorSettings,
    WorkerSettings,
    StoreSettings,
)

S = TypeVar("S", bound=CommonSettings)


def load_settings(kind: type[S], environ: Mapping[str, str]) -> S:
    """`kind` read from `environ`. Raises SettingsError, which names the variable."""
    known = frozenset(name for each in ALL_SETTINGS for name in each.model_fields)
    return read_settings(kind, environ, known)


__all__ = [
    "ALL_SETTINGS",
    "PREFIX",
    "CommonSettings",
    "ConductorSettings",
    "GatewaySettings",
    "SettingsError",
    "StoreSettings",
    "WorkerSettings",
    "load_settings",
]
