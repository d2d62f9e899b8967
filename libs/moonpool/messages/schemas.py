"""Writes the JSON Schemas of the public contracts: `python -m moonpool.messages.schemas`."""

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from moonpool.messages.audit import AuditEventV1
from moonpool.messages.metrics import MetricsSnapshotV1

CONTRACTS: dict[str, type[BaseModel]] = {
    "audit.v1.json": AuditEventV1,
    "metrics.v1.json": MetricsSnapshotV1,
}
DEFAULT_FOLDER = "docs/schemas"


def schema_text(kind: type[BaseModel]) -> str:
    """The schema that consumers validate by: it admits unknown fields, as they should."""
    schema = kind.model_json_schema()
    _open_up(schema)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Makes the folder when it is not there; returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, kind in CONTRACTS.items():
        path = folder / name
        path.write_text(schema_text(kind), encoding="utf-8")
        written.append(path)
    return written


def _open_up(node: object) -> None:
    if isinstance(node, dict):
        if node.get("additionalProperties") is False:
            del node["additionalProperties"]
        for value in node.values():
            _open_up(value)
    elif isinstance(node, list):
        for value in node:
            _open_up(value)


if __name__ == "__main__":
    for path in write_schemas(Path(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_FOLDER)):
        print(path)
