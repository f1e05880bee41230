"""The cards of a Linux computer as its kernel tells them, for whoever may read /sys: everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localspec.machine.drivers.seen import Seen, address

DRM = Path("/sys/class/drm")
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_CARD = re.compile(r"card\d+\Z")


def seen(root: Path = DRM) -> tuple[Seen, ...]:
    """Every card; AMD's with memory, Intel's with what its driver shows."""
    try:
        folders = sorted(path for path in root.iterdir() if _CARD.match(path.name))
    except OSError:
        return ()
    return tuple(card for folder in folders if (card := _card(folder)) is not None)


def _card(folder: Path) -> Seen | None:
    device = folder / "device"
    vendor = _VENDORS.get(_read(device / "vendor"))
    if vendor is None:
        return None
    about = dict(line.split("=", 1) for line in _lines(device / "uevent") if "=" in line)
    total = _number(device / "mem_info_vram_total") or _number(folder / "lmem_total_bytes")
    used = _number(device / "mem_info_vram_used")
    both = total is not None and used is not None
    return Seen(
        source="sysfs",
        id=address(about.get("PCI_SLOT_NAME")),
        free=max(0, (total or 0) - (used or 0)) if both else None,
        total=total,
        used=used if both else None,
        driver=about.get("DRIVER"),
        display=_display(folder),
        vendor=vendor,
    )


def _display(folder: Path) -> bool | None:
    """Whether a screen is plugged into it; None where it has no sockets at all."""
    try:
        connectors = sorted(folder.glob(f"{folder.name}-*"))
    except OSError:
        return None
    if not connectors:
        return None
    return any(_read(connector / "status") == "connected" for connector in connectors)


def _number(path: Path) -> int | None:
    with suppress(ValueError):
        return int(_read(path))
    return None


def _read(path: Path) -> str:
    return "\n".join(_lines(path)).strip()


def _lines(path: Path) -> Iterator[str]:
    with suppress(OSError):
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
