"""The repository as the tidy tests see it: its Python files, parsed once."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE_FOLDERS = ("libs", "services", "bench", "scripts", "tests")


def python_files(*folders: str) -> list[Path]:
    """Python files of these top folders (all by default), relative to the root."""
    found = (ROOT / top for top in folders or CODE_FOLDERS)
    return sorted(p.relative_to(ROOT) for top in found for p in top.rglob("*.py"))


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), filename=str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever in the file it stands."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def project_texts() -> list[Path]:
    """Everything a reader may open: code, docs, packaging, deployment."""
    suffixes = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".sh", ".cfg"}
    names = {"Makefile", "Dockerfile", "run"}
    tops = [ROOT / top for top in (*CODE_FOLDERS, "docs", "deploy", ".ci")]
    files = [p for top in tops for p in top.rglob("*") if p.suffix in suffixes or p.name in names]
    files += [p for p in ROOT.iterdir() if p.suffix in suffixes or p.name in names]
    return sorted(p.relative_to(ROOT) for p in files if p.is_file())
