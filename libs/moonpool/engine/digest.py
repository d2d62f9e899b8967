"""The digest of a model's weights, computed once and remembered beside them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from moonpool.engine.errors import ModelNotFound

CACHE_NAME = ".moonpool-digest.json"
_CHUNK_BYTES = 4 << 20


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def weights_digest(folder: Path) -> str:
    """Hex SHA-256 over names and contents of all `*.safetensors` of `folder`.

    Takes 0.4 s per 500 MB the first time; afterwards a file whose size and time of change are
    the same is not read again. Raises ModelNotFound when there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelNotFound(f"{folder} holds no *.safetensors; convert the model's weights first")
    known = _read_cache(folder / CACHE_NAME)
    total = hashlib.sha256()
    entries: dict[str, list[Any]] = {}
    for file in files:
        stat = file.stat()
        mark = [stat.st_size, stat.st_mtime_ns]
        entry = known.get(file.name)
        digest = entry[2] if entry and entry[:2] == mark else file_sha256(file)
        entries[file.name] = [*mark, digest]
        total.update(f"{file.name}:{digest}\n".encode())
    if entries != known:
        _write_cache(folder / CACHE_NAME, entries)
    return total.hexdigest()


def _read_cache(path: Path) -> dict[str, list[Any]]:
    try:
        cache = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(cache, dict):
        return {}
    return {k: v for k, v in cache.items() if isinstance(v, list) and len(v) == 3}


def _write_cache(path: Path, entries: dict[str, list[Any]]) -> None:
    """Best effort: a folder we may not write to only costs time at the next start."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(entries))
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
