"""Every setting of every service, in one place; read once at start from `MOONPOOL_*`."""

from moonpool.settings.base import PREFIX, CommonSettings, SettingsError
from moonpool.settings.bridge import BridgeSettings
from moonpool.settings.conductor import ConductorSettings
from moonpool.settings.exporter import ExporterSettings
from moonpool.settings.gateway import GatewaySettings
from moonpool.settings.load import ALL_SETTINGS, known_names, load_settings
from moonpool.settings.store import StoreSettings
from moonpool.settings.worker import WorkerSettings

__all__ = [
    "ALL_SETTINGS",
    "PREFIX",
    "BridgeSettings",
    "CommonSettings",
    "ConductorSettings",
    "ExporterSettings",
    "GatewaySettings",
    "SettingsError",
    "StoreSettings",
    "WorkerSettings",
    "known_names",
    "load_settings",
]
