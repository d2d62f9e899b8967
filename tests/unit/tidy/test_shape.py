"""Files and functions keep their size, packages their door-plates, texts their manners."""

import ast
import re
from pathlib import Path

from tests.unit.tidy.tree import ROOT, parse, project_texts, python_files

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 100

# Spelled in pieces, so that this file may name them.
BANNED = [
    r"\bTO" r"DO\b",
    r"\bFIX" r"ME\b",
    r"\bXX" r"X\b",
    r"pypi\." r"org",
    r"python" r"hosted",
    r"/wor" r"k/",
    r"/op" r"t/wheels",
    r"\bissue #?\d",
]


def test_no_file_is_longer_than_its_limit() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in python_files()}
    assert not {str(p): n for p, n in lengths.items() if n >= FILE_LINES_MAX}


def test_no_function_is_longer_than_its_limit() -> None:
    long = []
    for path in python_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{path}:{node.lineno} {node.name}: {lines} lines")
    assert not long


def test_no_line_is_wider_than_its_limit() -> None:
    wide = []
    for path in python_files():
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            if len(line) > COLUMNS_MAX:
                wide.append(f"{path}:{number}")
    assert not wide


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path)
        for path in python_files("libs", "services", "bench", "scripts")
        if not ast.get_docstring(parse(path))
    ]
    assert not silent


def test_every_package_has_an_init() -> None:
    folders = {path.parent for path in python_files("libs", "services")}
    missing = [
        str(f) for f in folders if len(f.parts) > 1 and not (ROOT / f / "__init__.py").exists()
    ]
    assert not missing


def is_door_plate(node: ast.stmt) -> bool:
    """A docstring, an import, `__all__` or `__version__`."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    names = node.targets if isinstance(node, ast.Assign) else []
    return bool(names) and all(
        isinstance(n, ast.Name) and n.id in {"__all__", "__version__"} for n in names
    )


def test_an_init_only_re_exports() -> None:
    wrong = []
    for path in python_files("libs", "services"):
        if path.name == "__init__.py":
            body = parse(path).body
            wrong += [f"{path}:{n.lineno}" for n in body if not is_door_plate(n)]
            imports = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
            has_all = any("__all__" in ast.unparse(n) for n in body if isinstance(n, ast.Assign))
            if imports and not has_all:
                wrong.append(f"{path}: no __all__")
    assert not wrong


def test_no_exception_is_swallowed() -> None:
    wrong = []
    for path in python_files("libs", "services", "bench", "scripts"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in {
                    "Exception",
                    "BaseException",
                }
                if broad and all(isinstance(n, ast.Pass) for n in node.body):
                    wrong.append(f"{path}:{node.lineno}")
    assert not wrong


def test_no_text_says_what_it_must_not() -> None:
    pattern = re.compile("|".join(BANNED))
    found = []
    for path in project_texts():
        for number, line in enumerate(_lines(path), 1):
            match = pattern.search(line)
            if match:
                found.append(f"{path}:{number} {match.group()}")
    assert not found


def _lines(path: Path) -> list[str]:
    return (ROOT / path).read_text(errors="replace").splitlines()
