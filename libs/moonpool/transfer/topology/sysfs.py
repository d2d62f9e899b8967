"""Reads what a host has from sysfs. The root is handed in, so that a copied tree reads the same."""

import contextlib
import re
from pathlib import Path

from moonpool.transfer.topology.machine import ANYWHERE, Gpu, Machine, Nic, Place

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_DISPLAY, _CONTROLLER_3D = "0x03", "0x0302"  # PCI classes
_GPU_VENDORS = ("0x10de", "0x1002")  # others' display adapters draw the console
_ETHERNET = "1"


def read_machine(root: Path) -> Machine:
    """`root` is /sys, or a copy of it. What is not there is left out; never raises for it."""
    return Machine(_distances(root), [*_adapters(root), *_interfaces(root)], _gpus(root))


def _distances(root: Path) -> dict[int, list[int]]:
    out = {}
    for folder in (root / "devices/system/node").glob("node[0-9]*"):
        numbers = _text(folder / "distance").split()
        out[int(folder.name.removeprefix("node"))] = [int(n) for n in numbers if n.isdecimal()]
    return out


def _adapters(root: Path) -> list[Nic]:
    found = []
    for folder in _sorted(root / "class/infiniband"):
        states = [_text(port / "state") for port in _sorted(folder / "ports")]
        up = any("ACTIVE" in state for state in states) if states else True
        found.append(Nic(folder.name, "rdma", _place(folder / "device"), up))
    return found


def _interfaces(root: Path) -> list[Nic]:
    """Those with hardware behind them; in a container, which has none, all that are up."""
    real, virtual = [], []
    for folder in _sorted(root / "class/net"):
        if _text(folder / "type") != _ETHERNET:
            continue
        up = _text(folder / "operstate") != "down"
        if (folder / "device").exists():
            real.append(Nic(folder.name, "net", _place(folder / "device"), up))
        elif up:
            virtual.append(Nic(folder.name, "net", Place()))
    return real or virtual


def _gpus(root: Path) -> list[Gpu]:
    """Numbered by PCI address, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    found: list[Gpu] = []
    for folder in sorted((root / "bus/pci/devices").glob("*")):
        kind = _text(folder / "class")
        computes = kind.startswith(_CONTROLLER_3D) or _text(folder / "vendor") in _GPU_VENDORS
        if kind.startswith(_DISPLAY) and computes:
            found.append(Gpu(f"cuda:{len(found)}", folder.name, _place(folder)))
    return found


def _place(device: Path) -> Place:
    """Of a device's folder or a link to it."""
    parts = device.resolve().parts
    buses = tuple(p for p in parts if _PCI_ROOT.fullmatch(p) or _PCI_ADDRESS.fullmatch(p))
    folder = device.resolve()
    node = ANYWHERE
    while len(folder.parts) > 1:  # a virtio device's node is in the folder of its PCI parent
        text = _text(folder / "numa_node")
        if text:
            node = int(text) if text.lstrip("-").isdecimal() else ANYWHERE
            break
        folder = folder.parent
    return Place(node, buses)


def _sorted(folder: Path) -> list[Path]:
    """By name, numbers by value: mlx5_2 before mlx5_10."""
    with contextlib.suppress(OSError):
        return sorted(
            folder.iterdir(),
            key=lambda p: [int(t) if t.isdecimal() else t for t in re.split(r"(\d+)", p.name)],
        )
    return []


def _text(path: Path) -> str:
    """Without blanks around; "" when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
