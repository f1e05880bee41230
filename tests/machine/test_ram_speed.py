"""machine/ram_speed.py: width, clock and share of a CPU's memory."""

import struct

import pytest

from localspec.machine import ram_speed
from localspec.machine.ram_speed import MemoryModules, find_ram_speed

UDEV = """\
I:1753000000
E:ID_VENDOR=ASUS
E:MEMORY_ARRAY_NUM_DEVICES=4
E:MEMORY_DEVICE_0_PRESENT=0
E:MEMORY_DEVICE_0_LOCATOR=DIMM_A1
E:MEMORY_DEVICE_0_SPEED_MTS=3000
E:MEMORY_DEVICE_1_TOTAL_WIDTH=64
E:MEMORY_DEVICE_1_DATA_WIDTH=64
E:MEMORY_DEVICE_1_SIZE=17179869184
E:MEMORY_DEVICE_1_TYPE=DDR4
E:MEMORY_DEVICE_1_SPEED_MTS=3600
E:MEMORY_DEVICE_1_CONFIGURED_SPEED_MTS=3200
E:MEMORY_DEVICE_3_DATA_WIDTH=64
E:MEMORY_DEVICE_3_SIZE=17179869184
E:MEMORY_DEVICE_3_TYPE=DDR4
E:MEMORY_DEVICE_3_CONFIGURED_SPEED_MTS=3200
"""


@pytest.mark.parametrize(
    ("cpu", "memory", "lowest", "highest"),
    [
        ("Raspberry Pi 5 Model B Rev 1.0", "32 bits of LPDDR4X", 8, 12),
        ("Raspberry Pi 4 Model B Rev 1.5", "32 bits of LPDDR4", 3, 5),
        ("Intel(R) N150", "one channel", 12, 18),
        ("Intel(R) N100", "one channel", 12, 18),
        ("Intel(R) Core(TM) i3-N305", "one channel", 12, 18),
        ("Intel(R) Core(TM) i5-8500 CPU @ 3.00GHz", "dual-channel DDR4", 24, 32),
        ("Intel(R) Core(TM) i5-10400 CPU @ 2.90GHz", "dual-channel DDR4", 34, 42),
        ("13th Gen Intel(R) Core(TM) i7-13700K", "DDR4 or DDR5", 44, 56),
        ("12th Gen Intel(R) Core(TM) i5-1240P", "DDR4 or DDR5", 44, 56),
        ("Intel(R) Core(TM) Ultra 7 155H", "dual-channel DDR5", 55, 70),
        ("AMD Ryzen 5 5600X 6-Core Processor", "dual-channel DDR4", 35, 42),
        ("AMD Ryzen 9 7900X 12-Core Processor", "dual-channel DDR5", 52, 66),
        ("AMD Ryzen AI 9 HX PRO 370 w/ Radeon 890M", "DDR5-5600", 55, 75),
        ("AMD Ryzen AI Max+ 395", "256 bits", 65, 105),
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "256 bits", 65, 105),
        ("N100", "one channel", 12, 20),
        ("ryzen 5600x", "dual-channel DDR4", 32, 42),
        ("i7 8700", "dual-channel DDR4", 24, 32),
        ("epyc 7763", "eight channels", 90, 130),
        ("AMD Ryzen Z1 Extreme", "LPDDR5", 45, 60),
        ("Intel(R) Xeon(R) E-2176G CPU @ 3.70GHz", "dual-channel DDR4", 24, 32),
        ("AMD Ryzen Threadripper 2950X", "four channels", 60, 80),
        ("AMD Ryzen Threadripper PRO 3995WX", "eight channels", 90, 130),
        ("Intel(R) Xeon(R) w5-2465X", "four channels of DDR5", 60, 100),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "four channels", 40, 55),
    ],
)
def test_a_family_has_its_memory(
    cpu: str, memory: str, lowest: float, highest: float
) -> None:
    found = find_ram_speed(cpu)
    assert memory in found.memory
    assert lowest <= found.share * found.bandwidth <= highest


def test_less_is_known_of_an_unknown_cpu() -> None:
    """A virtual machine has a share of its computer's memory, and hides its model."""
    known = find_ram_speed("AMD Ryzen 5 5600X 6-Core Processor")
    for cpu in ("AMD EPYC", "AMD EPYC 7B13", "Intel Xeon Processor", "aarch64", ""):
        unknown = find_ram_speed(cpu)
        assert unknown.error > known.error
        assert unknown.bandwidth < known.bandwidth


def test_two_cores_do_not_read_what_eight_channels_give() -> None:
    whole = find_ram_speed("AMD EPYC 7763 64-Core Processor")
    part = find_ram_speed("AMD EPYC 7763 64-Core Processor", n_cores=2)
    assert part.share * part.bandwidth < 30 < whole.share * whole.bandwidth


def test_the_modules_decide_where_the_system_names_them() -> None:
    modules = ram_speed.sum_modules(ram_speed.parse_udev(UDEV))
    assert modules == MemoryModules("DDR4", 3200, 128)

    found = find_ram_speed("AMD Ryzen 5 5600X", modules)

    assert found.bandwidth == pytest.approx(51.2)
    assert found.memory == "128 bits of DDR4-3200"
    assert found.error < find_ram_speed("AMD Ryzen 5 5600X").error


def test_the_name_of_a_cpu_may_name_its_memory() -> None:
    cpu = "12th Gen Intel(R) Core(TM) i5-12400"
    named = find_ram_speed(f"{cpu}, DDR5-5600")

    assert named.memory == "128 bits of DDR5-5600"
    assert named.error < find_ram_speed(cpu).error
    assert find_ram_speed(f"{cpu}, 32 GB DDR4").bandwidth == pytest.approx(51.2)
    assert ram_speed.is_known_cpu(cpu)
    assert ram_speed.is_known_cpu("an old box with DDR3-1333")
    assert not ram_speed.is_known_cpu("an old box")


def test_faster_modules_do_not_help_dies_that_cannot_read_them() -> None:
    usual = find_ram_speed("AMD Ryzen AI Max+ 395")
    faster = find_ram_speed("AMD Ryzen AI Max+ 395, LPDDR5X-9600")
    assert usual.bandwidth == faster.bandwidth == 128


def test_one_module_is_half_as_fast_and_four_are_no_faster_than_two() -> None:
    cpu = "Intel(R) Core(TM) i5-8500 CPU @ 3.00GHz"
    rates = []
    for n_modules in (1, 2, 4):
        modules = MemoryModules("DDR4", 2666, 64 * n_modules)
        rates.append(find_ram_speed(cpu, modules).bandwidth)
    assert rates == [pytest.approx(21.3, rel=0.01)] + [pytest.approx(42.7, 0.01)] * 2


def test_modules_of_two_kinds_or_none_say_nothing() -> None:
    mixed = [MemoryModules("DDR4", 3200, 64), MemoryModules("DDR5", 4800, 64)]
    assert ram_speed.sum_modules(mixed) is None
    assert ram_speed.sum_modules([]) is None
    assert ram_speed.parse_udev("E:MEMORY_DEVICE_0_SIZE=1\nE:MEMORY_DEVICE_0_X=") == []


def smbios_structure(kind: int, body: bytes) -> bytes:
    header = struct.pack("<BBH", kind, 4 + len(body), 0)
    return header + body + b"Samsung\0\0"


def smbios_module(size: int, kind: int, speed: int, width: int = 64) -> bytes:
    """Type 17 up to the configured speed, SMBIOS 7.18."""
    body = bytearray(0x22 - 4)
    struct.pack_into("<HH", body, 0x0A - 4, width, size)
    body[0x12 - 4] = kind
    struct.pack_into("<H", body, 0x20 - 4, speed)
    return smbios_structure(17, bytes(body))


def test_windows_table_of_the_firmware() -> None:
    table = smbios_structure(1, b"\0" * 20)
    table += smbios_module(size=16384, kind=34, speed=5600)
    table += smbios_module(size=0, kind=2, speed=0)  # An empty slot.
    table += smbios_module(size=16384, kind=34, speed=5600)
    table += smbios_structure(127, b"")

    modules = ram_speed.sum_modules(ram_speed.parse_smbios(table))

    assert modules == MemoryModules("DDR5", 5600, 128)


@pytest.mark.parametrize("table", [b"", b"\x11", b"\x11\x02\0\0", b"\x11\x30\0\0abc"])
def test_a_damaged_table_says_nothing(table: bytes) -> None:
    assert ram_speed.parse_smbios(table) == []
