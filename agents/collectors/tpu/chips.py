"""TPU chips on the PCI bus and the processes that have them open. By PCI address, never by the order of a listing."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleetscope.schema import wire_pb2 as wire

GOOGLE = "0x1ae0"
_SKUS = {
    ("0x0027", "0x004e"): ("TPU v2", 2),
    ("0x0027", "0x004f"): ("TPU v3", 2),
    ("0x005e", ""): ("TPU v4", 1),
    ("0x0063", ""): ("TPU v5e", 1),
    ("0x0062", ""): ("TPU v5p", 1),
    ("0x006f", ""): ("TPU v6e", 1),
    ("0x0076", ""): ("TPU v7x", 2),
}
"""(PCI device, subsystem where two share the first) -> SKU, cores with memory of their own. From tpu-info's list."""


@dataclass(frozen=True, slots=True)
class TpuChip:
    """One chip. `path`: what a process opens to use it, "" if the driver does not say."""

    device: wire.Device
    cores: int
    path: str


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def find(root: Path, host: str) -> list[TpuChip]:
    """Chips of this machine in order of their PCI address. `root`: /, or a tree built like it."""
    pci = root / "sys/bus/pci/devices"
    accel = {
        os.path.basename(os.path.realpath(entry / "device")): f"/dev/{entry.name}"
        for entry in sorted((root / "sys/class/accel").glob("accel*"))
    }
    found: list[TpuChip] = []
    for entry in sorted(pci.iterdir()) if pci.is_dir() else ():
        if _read(entry / "vendor") != GOOGLE:
            continue
        device, subsystem = _read(entry / "device"), _read(entry / "subsystem_device")
        sku, cores = _SKUS.get((device, subsystem)) or _SKUS.get((device, "")) or ("", 0)
        if not sku:
            continue  # Google's network cards are of the same vendor
        group = entry / "iommu_group"
        path = accel.get(entry.name) or (
            f"/dev/vfio/{os.path.basename(os.readlink(group))}" if group.is_symlink() else ""
        )
        ordinal = len(found)
        told = wire.Device(
            key=f"{host}/pci/{entry.name}", platform="tpu", sku=sku, local_name=f"/device:TPU:{ordinal}",
            local_ordinal=ordinal,
        )  # fmt: skip
        found.append(TpuChip(told, cores, path))
    return found


def opened(process: Path) -> frozenset[str]:
    """Files a process (its folder in /proc) has open; one that it closes meanwhile is left out, and no other with it.
    OSError if it has ended or may not be looked at."""
    folder, found = process / "fd", set()
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            found.add(os.readlink(folder / name))
    return frozenset(found)


_OPENED = re.compile(r"/dev/(?:accel\d+|vfio/\d+)")


def holders(root: Path, chips: list[TpuChip]) -> Mapping[str, frozenset[int]]:
    """Device key -> processes that have it open. A chip that nobody is seen to have is left out where a process may not
    be looked at: that it is free would be a guess."""
    holding: dict[str, set[int]] = {}
    denied = False
    for process in (root / "proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            links = opened(process)
        except PermissionError:
            denied = True
            continue
        except OSError:
            continue  # it has ended
        for link in links:
            if _OPENED.fullmatch(link):
                holding.setdefault(link, set()).add(int(process.name))
    return {
        chip.device.key: frozenset(holding.get(chip.path, ()))
        for chip in chips
        if chip.path and (chip.path in holding or not denied)
    }
