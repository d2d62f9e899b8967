"""Which settings exist, and how a service reads its own."""

from collections.abc import Mapping
from typing import TypeVar

from moonpool.settings.base import CommonSettings, read_settings
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


def known_names() -> frozenset[str]:
    """Field names of all services' settings."""
    return frozenset(name for each in ALL_SETTINGS for name in each.model_fields)


def load_settings(kind: type[S], environ: Mapping[str, str]) -> S:
    """`kind` read from `environ`. Raises SettingsError, which names the variable."""
    return read_settings(kind, environ, known_names())
