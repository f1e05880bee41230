"""What the processor calls itself."""

from __future__ import annotations

import platform
from pathlib import Path

from localspec.clean import clean

_CPUINFO = Path("/proc/cpuinfo")


def name(cpuinfo: Path = _CPUINFO) -> str:
    """As Linux writes it, or the system; empty where neither says."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return clean(value.strip(), multiline=False)
    except OSError:
        pass
    return clean(platform.processor(), multiline=False)
