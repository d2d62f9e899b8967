"""`moonpool topology`, on a tree like sysfs."""

from pathlib import Path

import pytest

from services.cli.program import main


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two NUMA nodes, an adapter on each, a GPU on the second."""
    monkeypatch.delenv("MOONPOOL_TOPOLOGY", raising=False)
    for node in (0, 1):
        write(
            tmp_path, f"devices/system/node/node{node}/distance", "10 21" if not node else "21 10"
        )
        device = f"devices/pci0000:{node}0/0000:{node}1:00.0"
        write(tmp_path, f"{device}/numa_node", str(node))
        write(tmp_path, f"class/infiniband/mlx5_{node}/ports/1/state", "4: ACTIVE")
        (tmp_path / f"class/infiniband/mlx5_{node}/device").symlink_to(tmp_path / device)
    gpu = tmp_path / "devices/pci0000:10/0000:12:00.0"
    for name, text in {"numa_node": "1", "class": "0x030200", "vendor": "0x10de"}.items():
        write(gpu, name, text)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:12:00.0").symlink_to(gpu)
    return tmp_path


def test_it_shows_the_matrix_and_where_everything_is(
    sysfs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "--sysfs", str(sysfs)]) == 0
    assert capsys.readouterr().out == (
        "MEMORY  PREFERRED  OTHER\n"
        "cpu:0   mlx5_0     mlx5_1\n"
        "cpu:1   mlx5_1     mlx5_0\n"
        "cuda:0  mlx5_1     mlx5_0\n"
        "\n"
        "DEVICE  KIND  NUMA  PCI           LINK\n"
        "mlx5_0  rdma  0     0000:01:00.0  up\n"
        "mlx5_1  rdma  1     0000:11:00.0  up\n"
        "cuda:0  gpu   1     0000:12:00.0\n"
    )


def test_as_json_it_is_what_the_setting_takes(
    sysfs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "--json", "--sysfs", str(sysfs)]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "told.json").write_text(printed)
    given = str(tmp_path / "told.json")
    assert main(["topology", "--json", "--given", given, "--sysfs", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == printed


def test_a_nic_that_is_not_here_is_named(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOONPOOL_TOPOLOGY", '{"cpu:0": [["mlx5_9"], []]}')
    assert main(["topology", "--sysfs", str(sysfs)]) == 0
    assert "mlx5_9 is named above" in capsys.readouterr().out


def test_what_cannot_be_is_said_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--given", '{"cpu:0": [["a"], ["a"]]}']) == 1
    assert "cpu:0: a cannot be both" in capsys.readouterr().err
