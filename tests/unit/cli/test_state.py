"""One mesh at a time lives in a state folder, and only its own files are ever removed."""

from pathlib import Path

import pytest

from services.cli.mesh import MeshRecord, MeshRefused, StateFolder


def make_record(**changed: object) -> MeshRecord:
    fields = {
        "pid": 7,
        "url": "http://127.0.0.1:8080",
        "nats_url": "nats://127.0.0.1:4222",
        "mesh": "mp",
        "model": "m",
        "logs": "/logs",
    }
    return MeshRecord(**{**fields, **changed})  # type: ignore[arg-type]


def test_a_second_mesh_is_refused_with_the_address_of_the_first(tmp_path: Path) -> None:
    first, second = StateFolder(tmp_path / "state"), StateFolder(tmp_path / "state")
    first.acquire()
    first.write(make_record())
    with pytest.raises(MeshRefused, match=r"http://127\.0\.0\.1:8080"):
        second.acquire()
    assert second.held()
    first.release()
    second.acquire()
    second.release()


def test_release_leaves_only_the_logs(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.acquire()
    folder.write(make_record())
    (folder.folder("nats") / "data").write_text("x")
    (folder.logs / "nats.log").write_text("x")
    folder.release()
    assert [p.name for p in folder.root.rglob("*")] == ["logs", "nats.log"]
    assert folder.read() is None
    assert not folder.held()


def test_files_of_others_in_the_folder_are_never_removed(tmp_path: Path) -> None:
    mine = tmp_path / "thesis.txt"
    mine.write_text("x")
    folder = StateFolder(tmp_path)
    folder.acquire()
    folder.release()
    assert mine.exists()


def test_the_record_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.acquire()
    folder.write(make_record(s3_secret_key="k"))
    assert (folder.root / "mesh.json").stat().st_mode & 0o077 == 0
    folder.release()


def test_a_record_of_another_version_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "mesh.json").write_text('{"pid": 1, "colour": "red"}')
    assert StateFolder(tmp_path).read() is None
