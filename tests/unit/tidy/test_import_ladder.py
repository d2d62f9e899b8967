"""Nothing imports upwards, nothing imports sideways, and services talk by message alone."""

from pathlib import Path

from tests.unit.tidy.tree import imports, python_files

LADDER = (
    {"kv"},
    {"messages"},
    {"cache", "clock", "settings"},
    {"bus", "transfer", "engine", "telemetry"},
    {"runtime"},
    {"client"},
    {"instance"},
)
RUNG = {package: rung for rung, packages in enumerate(LADDER) for package in packages}


def library_package(path: Path) -> str:
    """ "kv" for libs/moonpool/kv/keys.py; "" for libs/moonpool/__init__.py."""
    return path.parts[2] if len(path.parts) > 3 else ""


def test_every_library_package_has_its_rung() -> None:
    packages = {library_package(path) for path in python_files("libs")} - {""}
    assert packages <= set(RUNG), f"not on the ladder: {packages - set(RUNG)}"


def test_a_library_imports_only_from_rungs_below() -> None:
    wrong = []
    for path in python_files("libs"):
        own = library_package(path)
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] != "moonpool" or len(parts) < 2 or parts[1] == own:
                continue
            if own == "" or RUNG[parts[1]] >= RUNG[own]:
                wrong.append(f"{path}:{line} imports {module}")
    assert not wrong


def test_libraries_never_import_services() -> None:
    wrong = [
        f"{path}:{line} imports {module}"
        for path in python_files("libs")
        for line, module in imports(path)
        if module.split(".")[0] in {"services", "bench", "tests"}
    ]
    assert not wrong


def test_services_never_import_one_another() -> None:
    wrong = []
    for path in python_files("services"):
        own = path.parts[1]
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] in {"bench", "tests"} or (parts[0] == "services" and parts[1:2] != [own]):
                wrong.append(f"{path}:{line} imports {module}")
    assert not wrong


def test_imports_are_absolute() -> None:
    wrong = [
        f"{path}:{line} imports {module}"
        for path in python_files()
        for line, module in imports(path)
        if module.startswith(".")
    ]
    assert not wrong


def test_cores_do_no_input_or_output() -> None:
    shells = {"asyncio", "socket", "threading", "time", "random", "os", "subprocess", "httpx"}
    wrong = []
    for path in python_files("services", "libs"):
        pure = path.name == "core.py" or path.parts[:3] in {
            ("libs", "moonpool", "kv"),
            ("libs", "moonpool", "cache"),
            ("libs", "moonpool", "messages"),
        }
        if pure:
            wrong += [
                f"{path}:{line} imports {module}"
                for line, module in imports(path)
                if module.split(".")[0] in shells
            ]
    assert not wrong
