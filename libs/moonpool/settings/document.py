"""Writes docs/configuration.md from the settings: `python -m moonpool.settings.document > FILE`."""

from pydantic.fields import FieldInfo

from moonpool.settings.base import PREFIX, CommonSettings
from moonpool.settings.bridge import BridgeSettings
from moonpool.settings.conductor import ConductorSettings
from moonpool.settings.exporter import ExporterSettings
from moonpool.settings.gateway import GatewaySettings
from moonpool.settings.store import StoreSettings
from moonpool.settings.worker import WorkerSettings

HEAD = """\
# Configuration

Every service reads its settings once, at start, from environment variables. A variable that no
service knows, or a value that does not fit, stops the start and names itself. `moonpool up` passes
on what its own environment holds. `MOONPOOL_X_FILE` names a file that holds the value of
`MOONPOOL_X`: for secrets. This page is generated:
`python -m moonpool.settings.document > docs/configuration.md`.
"""

SECTIONS: tuple[tuple[str, type[CommonSettings]], ...] = (
    ("Every service", CommonSettings),
    ("Gateway", GatewaySettings),
    ("Conductor", ConductorSettings),
    ("Prefill, decode and colocated instances", WorkerSettings),
    ("Store nodes", StoreSettings),
    ("Exporter", ExporterSettings),
    ("Bridge", BridgeSettings),
)


def _default(field: FieldInfo) -> str:
    value = field.default
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
            if value % size == 0:
                return f"`{value}` ({value // size} {unit})"
    return f"`{value}`" if value != "" else "empty"


def _table(kind: type[CommonSettings]) -> list[str]:
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in kind.model_fields.items():
        if kind is not CommonSettings and name in CommonSettings.model_fields:
            continue
        lines.append(f"| `{PREFIX}{name.upper()}` | {_default(field)} | {field.description} |")
    return lines


def configuration_page() -> str:
    """The whole page, as docs/configuration.md must hold it."""
    lines = [HEAD]
    for title, kind in SECTIONS:
        lines += [f"## {title}", "", *_table(kind), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(configuration_page(), end="")
