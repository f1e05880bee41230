"""Which machine and which files a result comes from."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.clean import clean
from localspec.protocol.events import Ready

_TRADE = re.compile(r"\((?:R|TM)\)")


@dataclass(frozen=True, slots=True)
class Machine:
    """This computer and the engine on it."""

    cpu: str
    cores: int | None
    """Physical ones."""
    memory: int | None
    system: str
    engine: dict[str, str]
    devices: tuple[str, ...]
    threads: int | None


def describe(ready: Ready) -> Machine:
    import psutil  # noqa: PLC0415  late: --help needs none

    target = ready.settings.get("target") or {}
    return Machine(
        cpu=clean(_TRADE.sub("", _cpu()), multiline=False),
        cores=psutil.cpu_count(logical=False),
        memory=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        engine=dict(ready.engine),
        devices=tuple(ready.devices),
        threads=target.get("n_threads"),
    )


def _cpu() -> str:
    """The processor's name, as each system tells it."""
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return " ".join(found[1].split())
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                asked, capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
    return platform.processor() or platform.machine() or "unknown processor"
