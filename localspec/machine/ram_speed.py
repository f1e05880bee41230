"""How fast a CPU reads its memory, until that is measured.

The speed is the width of the memory times its clock, times the share of this peak that
the CPU's cores reach. Width and clock come from the firmware (SMBIOS), or from the text
that names a CPU ("i5-12400, DDR4-3200"). What these do not say comes from the row of the
CPU's family. For a CPU without a row the range of an estimate is wide.

For example, a Ryzen 5600 with two modules of DDR4-3200 has 128 bits / 8 × 3,200 = 51.2
GB/s. Its cores reach 70 % of them, 36 GB/s.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path

from msgspec import Struct

_KNOWN_ERROR = 0.35
"""Relative error of a pass if width and clock of the memory are known.

How many layers the CPU caches, and how well its cores unpack weights, is not.
"""
_FAMILY_ERROR = 0.4  # The same if they are those of the family.
_UNKNOWN_ERROR = 0.6  # The same if not even the family is known.
_CHANNEL_BITS = 64
_CORE_GB_S = 12.0
"""What one core reads at most, in GB/s: a virtual machine may have two of them."""
_UDEV_DATABASE = Path("/run/udev/data/+dmi:id")
"""udev writes the modules there, which only root may read from the firmware."""
_SMBIOS_MODULE = 17  # The type of a structure that describes a memory module.


class MemoryModules(Struct, frozen=True):
    """The memory that is plugged or soldered in."""

    kind: str  # As in SMBIOS: DDR4, LPDDR5.
    megatransfers: int  # Per second, as configured.
    bits: int  # The width of all modules together.


class CpuFamily(Struct, frozen=True):
    """CPUs of one name pattern, and the memory they are usually sold with."""

    pattern: str
    memory: str  # Such as "dual-channel DDR4-3200".
    bandwidth: float  # Its peak, GB/s.
    share: float = 0.66  # Of the peak, that one-token passes reach.
    bits: int = 2 * _CHANNEL_BITS  # The most that the CPU has channels for.
    limit: float = inf  # GB/s that its dies can read, whatever the memory.
    error: float = _FAMILY_ERROR


class RamSpeed(Struct, frozen=True):
    """How fast a CPU reads its memory, and how uncertain that is."""

    memory: str  # Such as "128 bits of DDR4-3200".
    bandwidth: float  # Peak, GB/s.
    share: float
    error: float  # Relative, of a one-token pass.
    family: str = ""  # The pattern of its family; empty if that is unknown.


_FAMILIES = (
    CpuFamily(
        "Raspberry Pi 5|BCM2712",
        "32 bits of LPDDR4X-4267",
        bandwidth=17.1,
        share=0.7,
        bits=32,
    ),
    CpuFamily(
        "Raspberry Pi 4|BCM2711",
        "32 bits of LPDDR4-3200",
        bandwidth=12.8,
        share=0.33,
        bits=32,
    ),
    CpuFamily(
        "RK3588|Orange Pi 5|ROCK 5", "LPDDR4X-4224", bandwidth=33.8, share=0.4, bits=64
    ),
    CpuFamily("Cix|C[DP]8180", "128 bits of LPDDR5-5500", bandwidth=88.0, share=0.4),
    CpuFamily(
        "AmpereOne", "eight channels of DDR5-5200", bandwidth=333.0, share=0.4, bits=512
    ),
    CpuFamily(
        "Altra|Neoverse-N1",
        "eight channels of DDR4-3200",
        bandwidth=205.0,
        share=0.5,
        bits=512,
    ),
    CpuFamily(r"Apple M\d", "its own LPDDR", bandwidth=68.0, share=0.7),
    CpuFamily("Snapdragon", "LPDDR5X-8448", bandwidth=135.0, share=0.5),
    # Few small cores on one channel: they take longer to unpack weights than to read
    # them.
    CpuFamily(
        r"\bN(?:50|9[57]|[12]\d{2}|3[05]\d)\b|Celeron|Atom|"
        r"Pentium.* [JN]\d{4}|\b[JN]\d{4}\b",
        "one channel",
        bandwidth=29.0,
        share=0.62,
        bits=64,
    ),
    CpuFamily(
        r"Ryzen AI Max",
        "256 bits of LPDDR5X-8000",
        bandwidth=256.0,
        share=0.6,
        bits=256,
        limit=128.0,
        error=_UNKNOWN_ERROR,
    ),
    CpuFamily(
        r"Ryzen AI",
        "dual-channel DDR5-5600 or LPDDR5X-7500",
        bandwidth=105.0,
        share=0.62,
    ),
    CpuFamily(r"Ryzen Z[12]", "LPDDR5-6400", bandwidth=102.0, share=0.5),
    CpuFamily(
        r"Threadripper PRO [79]\d{3}",
        "eight channels of DDR5-5200",
        bandwidth=333.0,
        share=0.5,
        bits=512,
    ),
    CpuFamily(
        r"Threadripper [79]\d{3}",
        "four channels of DDR5-5200",
        bandwidth=166.0,
        share=0.6,
        bits=256,
    ),
    CpuFamily(
        r"Threadripper PRO [35]\d{3}",
        "eight channels of DDR4-3200",
        bandwidth=205.0,
        share=0.5,
        bits=512,
    ),
    CpuFamily(
        r"Threadripper", "four channels of DDR4", bandwidth=95.0, share=0.8, bits=256
    ),
    CpuFamily(
        r"EPYC 9\d{2}[45]",
        "twelve channels of DDR5",
        bandwidth=461.0,
        share=0.62,
        bits=768,
    ),
    CpuFamily(
        r"EPYC 7\d{2}[123]",
        "eight channels of DDR4",
        bandwidth=187.0,
        share=0.55,
        bits=512,
    ),
    CpuFamily(
        r"Xeon.* w[3579]-2[45]\d{2}",
        "four channels of DDR5",
        bandwidth=154.0,
        share=0.5,
        bits=256,
    ),
    CpuFamily(
        r"Xeon.* w[579]-3[45]\d{2}",
        "eight channels of DDR5",
        bandwidth=307.0,
        share=0.45,
        bits=512,
    ),
    CpuFamily(
        r"Xeon.* w[3579]\b",
        "four channels of DDR5",
        bandwidth=154.0,
        share=0.5,
        bits=256,
    ),
    CpuFamily(
        r"Xeon.* W-3\d{3}", "six channels of DDR4", bandwidth=141.0, share=0.6, bits=384
    ),
    CpuFamily(
        r"Xeon.* W-2\d{3}", "four channels of DDR4", bandwidth=85.0, share=0.7, bits=256
    ),
    CpuFamily(
        r"Xeon.* E5-\d{4} v[34]",
        "four channels of DDR4",
        bandwidth=72.0,
        share=0.65,
        bits=256,
    ),
    CpuFamily(
        r"Xeon.* E5-\d{4}",
        "four channels of DDR3",
        bandwidth=51.0,
        share=0.65,
        bits=256,
    ),
    CpuFamily(r"Xeon.* E3-\d{4}", "dual-channel memory", bandwidth=30.0),
    CpuFamily(r"Xeon.* E-2\d{3}", "dual-channel DDR4-2666", bandwidth=42.7, share=0.7),
    CpuFamily(
        r"Xeon.* (?:Silver|Gold|Platinum|Bronze) [3-9][45]\d{2}",
        "eight channels of DDR5",
        bandwidth=307.0,
        share=0.4,
        bits=512,
    ),
    CpuFamily(
        r"Xeon.* (?:Silver|Gold|Platinum|Bronze) [3-9]3\d{2}",
        "eight channels of DDR4",
        bandwidth=205.0,
        share=0.45,
        bits=512,
    ),
    CpuFamily(
        r"Xeon.* (?:Silver|Gold|Platinum|Bronze)",
        "six channels of DDR4",
        bandwidth=128.0,
        share=0.5,
        bits=384,
    ),
    CpuFamily(r"Core.* Ultra .*2\d{2}V", "LPDDR5X-8533", bandwidth=136.5, share=0.6),
    CpuFamily(r"Core.* Ultra", "dual-channel DDR5", bandwidth=96.0, share=0.68),
    # Its fabric carries 64 GB/s, whatever the memory.
    CpuFamily(
        r"Ryzen (?:[3579] )?(?:PRO )?[789]\d{3}",
        "dual-channel DDR5",
        bandwidth=88.0,
        share=0.67,
    ),
    CpuFamily(
        r"Ryzen (?:[3579] )?(?:PRO )?6\d{3}",
        "dual-channel DDR5-4800",
        bandwidth=77.0,
        share=0.68,
    ),
    CpuFamily(
        r"Ryzen (?:[3579] )?(?:PRO )?[345]\d{3}",
        "dual-channel DDR4-3200",
        bandwidth=51.2,
        share=0.7,
    ),
    CpuFamily(
        r"Ryzen (?:[3579] )?(?:PRO )?[12]\d{3}",
        "dual-channel DDR4-2666",
        bandwidth=42.7,
    ),
    CpuFamily(
        r"i[79][- ]\d{4,5}XE?\b",
        "four channels of DDR4-2933",
        bandwidth=94.0,
        share=0.75,
        bits=256,
    ),
    CpuFamily(
        r"i[3579][- ]1[234]\d{2}",
        "dual-channel DDR4 or DDR5",
        bandwidth=70.0,
        share=0.67,
    ),
    CpuFamily(
        r"i[3579][- ]1[01]\d{2}", "dual-channel DDR4-3200", bandwidth=51.2, share=0.72
    ),
    CpuFamily(
        r"i[3579][- ][89]\d{3}", "dual-channel DDR4-2666", bandwidth=42.7, share=0.66
    ),
    CpuFamily(
        r"i[3579][- ][67]\d{3}", "dual-channel DDR4-2400", bandwidth=38.4, share=0.72
    ),
    CpuFamily(
        r"i[3579][- ][2345]\d{3}", "dual-channel DDR3-1600", bandwidth=25.6, share=0.7
    ),
    CpuFamily(
        r"Core.* (?:[3579] )?1[0-9]{2}[UH]\b",
        "dual-channel DDR5",
        bandwidth=83.0,
        share=0.68,
    ),
)
"""The first whose pattern is in the name counts.

The peak is that of the memory that such computers are mostly sold with, and the share
follows from published speeds on such CPUs: 10 GB/s on a Raspberry Pi 5, 15 on an N100,
32 on an i5-9500, 34 on an i5-1135G7, 46 on an i3-14100, 56 on a Ryzen 7950X.
"""
_UNKNOWN = CpuFamily(
    "", "memory of an unknown CPU", bandwidth=48.0, share=0.65, error=_UNKNOWN_ERROR
)
_NAMED_MODULES = re.compile(r"\b((?:LP)?DDR[345]X?)(?:-(\d{3,5}))?\b", re.IGNORECASE)
_ONE_CHANNEL = re.compile(r"\b(?:one|single)[ -](?:channel|module)\b", re.IGNORECASE)
_USUAL_CLOCKS = {"DDR3": 1600, "DDR4": 3200, "DDR5": 5200}
"""Megatransfers per second, of a kind that a text names without a clock."""


@cache
def read_ram_speed(cpu_name: str, n_cores: int) -> RamSpeed:
    """How fast the CPU of this computer reads its memory."""
    return find_ram_speed(cpu_name, read_modules(), n_cores)


def find_ram_speed(
    cpu_name: str, modules: MemoryModules | None = None, n_cores: int | None = None
) -> RamSpeed:
    """The memory of a CPU, from its name and what the system says of the modules.

    The text may name the memory, too. Example: two modules of DDR4-3200 are 128 bits
    wide, so they give 51.2 GB/s. Four modules in a desktop share the two channels that
    it has, and give no more.
    """
    family = _find_family(cpu_name)
    if modules is None:
        modules = _read_named_modules(cpu_name, family)
    bandwidth = family.bandwidth
    memory = family.memory
    error = family.error
    if modules is not None:
        bits = min(modules.bits, family.bits)
        bandwidth = bits / 8 * modules.megatransfers / 1e3
        memory = f"{bits} bits of {modules.kind}-{modules.megatransfers}"
        error = min(error, _KNOWN_ERROR)
    bandwidth = min(bandwidth, family.limit)
    share = family.share
    if n_cores is not None:
        share = min(share, n_cores * _CORE_GB_S / bandwidth)
    return RamSpeed(
        memory,
        bandwidth=bandwidth,
        share=share,
        error=error,
        family=family.pattern,
    )


def is_known_cpu(cpu_name: str) -> bool:
    """Whether the text names a family of CPUs, or the memory of one."""
    family = _find_family(cpu_name)
    return bool(family.pattern) or _NAMED_MODULES.search(cpu_name) is not None


def _read_named_modules(text: str, family: CpuFamily) -> MemoryModules | None:
    """What a text says of the memory, such as "i5-12400, one module of DDR4-3200".

    A kind without a clock says more than the family where that is sold with several.
    """
    found = _NAMED_MODULES.search(text)
    if found is None:
        return None
    bits = family.bits
    if _ONE_CHANNEL.search(text):
        bits = _CHANNEL_BITS
    kind = found[1].upper()
    if found[2]:
        return MemoryModules(kind, megatransfers=int(found[2]), bits=bits)
    is_open = " or " in family.memory or not family.pattern
    if kind in _USUAL_CLOCKS and (is_open or bits < family.bits):
        return MemoryModules(kind, megatransfers=_USUAL_CLOCKS[kind], bits=bits)
    return None


def _find_family(cpu_name: str) -> CpuFamily:
    name = re.sub(r"\((?:R|TM)\)", "", cpu_name)
    for family in _FAMILIES:
        if re.search(family.pattern, name, re.IGNORECASE):
            return family
    return _UNKNOWN


# --- What the system says of the modules.


def read_modules() -> MemoryModules | None:
    """The modules of this computer; None if the system does not say."""
    with suppress(OSError, ValueError, AttributeError, struct.error):
        if sys.platform == "win32":
            return sum_modules(parse_smbios(_read_windows_smbios()))
        if sys.platform == "linux":
            text = _UDEV_DATABASE.read_text(encoding="utf-8", errors="replace")
            return sum_modules(parse_udev(text))
    return None


def sum_modules(modules: Sequence[MemoryModules]) -> MemoryModules | None:
    """All modules as one; None if there are none, or if they differ in kind."""
    if not modules or len({module.kind for module in modules}) > 1:
        return None
    slowest = min(module.megatransfers for module in modules)
    bits = sum(module.bits for module in modules)
    return MemoryModules(modules[0].kind, megatransfers=slowest, bits=bits)


def parse_udev(text: str) -> list[MemoryModules]:
    """The modules in udev's record of the firmware (`E:MEMORY_DEVICE_0_SIZE=…`)."""
    by_module: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        found = re.match(r"E:\s*MEMORY_DEVICE_(\d+)_([A-Z_]+)=(.*)", line)
        if found:
            by_module.setdefault(found[1], {})[found[2]] = found[3]
    modules = []
    for facts in by_module.values():
        if facts.get("PRESENT") == "0" or "SIZE" not in facts:
            continue
        kind = facts.get("TYPE", "")
        speed = facts.get("CONFIGURED_SPEED_MTS") or facts.get("SPEED_MTS") or ""
        width = facts.get("DATA_WIDTH", "")
        if not kind.endswith(tuple("12345X")) or not speed.isdecimal():
            continue
        if not width.isdecimal():
            continue
        modules.append(MemoryModules(kind, megatransfers=int(speed), bits=int(width)))
    return modules


_SMBIOS_KINDS = {24: "DDR3", 26: "DDR4", 30: "LPDDR4", 34: "DDR5", 35: "LPDDR5"}


def parse_smbios(table: bytes) -> list[MemoryModules]:
    """The modules in an SMBIOS table (System Management BIOS specification, 7.18)."""
    modules = []
    for structure in _iter_structures(table):
        if structure[0] != _SMBIOS_MODULE or len(structure) < 0x22:
            continue
        (width,) = struct.unpack_from("<H", structure, 0x0A)
        (size,) = struct.unpack_from("<H", structure, 0x0C)
        kind = _SMBIOS_KINDS.get(structure[0x12])
        (speed,) = struct.unpack_from("<H", structure, 0x20)
        is_known = width not in (0, 0xFFFF) and speed not in (0, 0xFFFF)
        if size and kind and is_known:  # A slot without a module has the size 0.
            modules.append(MemoryModules(kind, megatransfers=speed, bits=width))
    return modules


def _iter_structures(table: bytes) -> Iterator[bytes]:
    """Each structure without the texts that follow it, which end with two zeros."""
    start = 0
    while start + 4 <= len(table):
        length = table[start + 1]
        if length < 4:
            return
        yield table[start : start + length]
        end = table.find(b"\0\0", start + length)
        if end < 0:
            return
        start = end + 2


def _read_windows_smbios() -> bytes:
    """The table, without the eight bytes that Windows puts before it."""
    query = ctypes.WinDLL("kernel32").GetSystemFirmwareTable  # type: ignore[attr-defined,unused-ignore]
    provider = int.from_bytes(b"RSMB", "big")
    size = query(provider, 0, None, 0)
    buffer = ctypes.create_string_buffer(size)
    query(provider, 0, buffer, size)
    return bytes(buffer.raw[8:])
