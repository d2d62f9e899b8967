"""Which NICs are near which memory: read from a tree like sysfs, or told in Mooncake's JSON."""

import json
from pathlib import Path

import pytest

from moonpool.transfer import BadTopology
from moonpool.transfer.topology import (
    OTHER,
    PREFERRED,
    UNNAMED,
    Row,
    discover,
    load,
    parse,
    read_machine,
    render,
)

NVIDIA, ASPEED = "0x10de", "0x1a03"


class Sysfs:
    """Builds what the kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def node(self, number: int, *distances: int) -> None:
        self.write(f"devices/system/node/node{number}/distance", " ".join(map(str, distances)))

    def pci(self, path: str, node: int, **attributes: str) -> Path:
        """A device under `devices/`, like "pci0000:10/0000:10:01.0/0000:11:00.0"."""
        for name, text in {"numa_node": str(node), **attributes}.items():
            self.write(f"devices/{path}/{name}", text)
        return self.link(f"bus/pci/devices/{path.rpartition('/')[2]}", self.root / "devices" / path)

    def link(self, path: str, target: Path) -> Path:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)
        return target

    def adapter(self, name: str, path: str, node: int, state: str = "4: ACTIVE") -> None:
        device = self.pci(path, node)
        self.write(f"class/infiniband/{name}/ports/1/state", state)
        self.link(f"class/infiniband/{name}/device", device)

    def interface(self, name: str, device: Path | None, state: str = "up", kind: str = "1") -> None:
        self.write(f"class/net/{name}/type", kind)
        self.write(f"class/net/{name}/operstate", state)
        if device is not None:
            self.link(f"class/net/{name}/device", device)

    def gpu(self, path: str, node: int, vendor: str = NVIDIA, kind: str = "0x030200") -> None:
        self.pci(path, node, vendor=vendor, **{"class": kind})


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def two_sockets(sysfs: Sysfs) -> None:
    """Two NUMA nodes, two switches on each, and on each switch one GPU and one adapter."""
    sysfs.node(0, 10, 21)
    sysfs.node(1, 21, 10)
    for index in range(4):
        node, switch = index // 2, f"pci0000:{index}0/0000:{index}0:01.0/0000:{index}1:00.0"
        sysfs.gpu(f"{switch}/0000:{index}2:00.0", node)
        sysfs.adapter(f"mlx5_{index}", f"{switch}/0000:{index}3:00.0", node)


def test_memory_of_a_node_prefers_the_nics_of_that_node(sysfs: Sysfs) -> None:
    two_sockets(sysfs)
    rows = discover(sysfs.root).rows
    assert rows["cpu:0"] == Row(("mlx5_0", "mlx5_1"), ("mlx5_2", "mlx5_3"))
    assert rows["cpu:1"] == Row(("mlx5_2", "mlx5_3"), ("mlx5_0", "mlx5_1"))


def test_a_gpu_prefers_the_nic_behind_its_own_switch(sysfs: Sysfs) -> None:
    two_sockets(sysfs)
    rows = discover(sysfs.root).rows
    for index in range(4):
        assert rows[f"cuda:{index}"].preferred == (f"mlx5_{index}",)
        assert len(rows[f"cuda:{index}"].others) == 3


def test_a_node_without_a_nic_prefers_those_of_the_nearest(sysfs: Sysfs) -> None:
    sysfs.node(0, 10, 12, 32)
    sysfs.node(1, 12, 10, 32)
    sysfs.node(2, 32, 32, 10)
    sysfs.adapter("mlx5_0", "pci0000:10/0000:10:00.0", 1)
    sysfs.adapter("mlx5_1", "pci0000:20/0000:20:00.0", 2)
    assert discover(sysfs.root).rows["cpu:0"] == Row(("mlx5_0",), ("mlx5_1",))


def test_an_unknown_node_is_far_from_nobody(sysfs: Sysfs) -> None:
    sysfs.node(0, 10)
    sysfs.adapter("mlx5_0", "pci0000:10/0000:10:00.0", -1)
    sysfs.adapter("mlx5_1", "pci0000:20/0000:20:00.0", 0)
    assert discover(sysfs.root).rows["cpu:0"] == Row(("mlx5_0", "mlx5_1"))


def test_an_interface_ranks_like_the_adapter_of_its_card(sysfs: Sysfs) -> None:
    two_sockets(sysfs)
    card = sysfs.root / "devices/pci0000:20/0000:20:01.0/0000:21:00.0/0000:23:00.0"
    sysfs.interface("eth2", card)
    topology = discover(sysfs.root)
    assert topology.rank("cuda:2", "eth2") == topology.rank("cuda:2", "mlx5_2") == PREFERRED
    told = load(_file(sysfs, {"cpu:0": [["mlx5_2"], ["mlx5_0"]]}), sysfs.root)
    assert told.rank("cpu:0", "eth2") == PREFERRED
    assert told.rank("cpu:0", "mlx5_0") == OTHER
    assert told.rank("cpu:0", "mlx5_3") == UNNAMED


def _file(sysfs: Sysfs, told: object) -> str:
    path = sysfs.root / "topology.json"
    path.write_text(json.dumps(told))
    return str(path)


def test_interfaces_without_hardware_count_only_where_there_are_no_others(sysfs: Sysfs) -> None:
    sysfs.interface("lo", None, "unknown", kind="772")
    sysfs.interface("docker0", None)
    sysfs.interface("ifb0", None, "down")
    assert [nic.name for nic in read_machine(sysfs.root).nics] == ["docker0"]
    sysfs.interface("eth0", sysfs.pci("pci0000:00/0000:00:03.0", -1))
    assert [nic.name for nic in read_machine(sysfs.root).nics] == ["eth0"]


def test_a_virtio_interface_stands_where_its_pci_parent_does(sysfs: Sysfs) -> None:
    sysfs.pci("pci0000:00/0000:00:03.0", 1)
    inner = sysfs.root / "devices/pci0000:00/0000:00:03.0/virtio2"
    inner.mkdir()
    sysfs.interface("eth0", inner)
    (nic,) = read_machine(sysfs.root).nics
    assert nic.place.numa_node == 1
    assert nic.place.buses == ("pci0000:00", "0000:00:03.0")


def test_the_console_is_no_gpu_and_gpus_are_numbered_by_address(sysfs: Sysfs) -> None:
    sysfs.gpu("pci0000:00/0000:02:00.0", 0, vendor=ASPEED, kind="0x030000")
    sysfs.gpu("pci0000:10/0000:a1:00.0", 0)
    sysfs.gpu("pci0000:10/0000:0f:00.0", 0, kind="0x030000")
    sysfs.pci("pci0000:10/0000:a2:00.0", 0, vendor=NVIDIA, **{"class": "0x040300"})
    gpus = read_machine(sysfs.root).gpus
    assert [(g.location, g.address) for g in gpus] == [
        ("cuda:0", "0000:0f:00.0"),
        ("cuda:1", "0000:a1:00.0"),
    ]


def test_adapters_are_ordered_by_number_and_know_whether_they_are_up(sysfs: Sysfs) -> None:
    for number in (10, 2, 1):
        state = "1: DOWN" if number == 2 else "4: ACTIVE"
        sysfs.adapter(f"mlx5_{number}", f"pci0000:10/0000:{number}0:00.0", 0, state)
    nics = read_machine(sysfs.root).nics
    assert [(nic.name, nic.up) for nic in nics] == [
        ("mlx5_1", True),
        ("mlx5_2", False),
        ("mlx5_10", True),
    ]


def test_an_empty_tree_gives_one_node_and_no_nic(tmp_path: Path) -> None:
    assert dict(discover(tmp_path).rows) == {"cpu:0": Row()}


def test_this_host_has_at_least_one_node() -> None:
    assert "cpu:0" in discover().rows


# Told.


def test_what_is_told_comes_out_as_it_went_in() -> None:
    text = '{"cpu:0": [["mlx5_0", "mlx5_1"], ["mlx5_2"]], "cuda:0": [["mlx5_0"], []]}'
    assert render(parse(text)) == text


def test_memory_that_no_row_names_has_no_preference_unless_a_star_says_so() -> None:
    assert parse('{"cpu:0": [["a"], []]}').rank("cpu:7", "b") == PREFERRED
    assert parse('{"*": [["a"], []]}').rank("cpu:7", "b") == UNNAMED


def test_memory_that_nobody_placed_is_on_the_only_node_or_on_any() -> None:
    assert parse('{"cpu:0": [["a"], ["b"]], "cuda:0": [["b"], []]}').rank("", "b") == OTHER
    two = parse('{"cpu:0": [["a"], ["b"]], "cpu:1": [["b"], ["a"]]}')
    assert two.rank("", "a") == two.rank("", "b") == PREFERRED


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no JSON"),
        ('{"cpu:0": [["a"], []]', "line 1 column"),
        ("[]", "an object by location, not a list"),
        ("3", "not a number"),
        ('{"cpu0": [["a"], []]}', "'cpu0' is no location"),
        ('{"cpu:-1": [["a"], []]}', "'cpu:-1' is no location"),
        ('{"cpu:0": ["a"]}', "not a list of 1"),
        ('{"cpu:0": {"a": 1}}', "not an object"),
        ('{"cpu:0": ["a", "b"]}', "a string is no list"),
        ('{"cpu:0": [[1], []]}', "1 is no NIC's name"),
        ('{"cpu:0": [[""], []]}', "no NIC's name"),
        ('{"cpu:0": [["a", "a"], []]}', "a is there twice"),
        ('{"cpu:0": [["a"], ["a"]]}', "both preferred and other"),
        ('{"cpu:0": [["a"], []], "cpu:0": [[], []]}', "'cpu:0' is there twice"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(BadTopology) as refusal:
        parse(text)
    assert named in refusal.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, data in {"binary": b"\xff\xfe", "wrong": b"[]", "huge": bytes(2 << 20)}.items():
        (tmp_path / name).write_bytes(data)
    for name in ("missing", "binary", "wrong", "huge"):
        with pytest.raises(BadTopology) as refusal:
            load(str(tmp_path / name))
        assert str(tmp_path / name) in refusal.value.message
