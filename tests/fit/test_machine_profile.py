"""fit/machine_profile.py: computers that are not here."""

import pytest

from localspec.errors import UsageError
from localspec.fit import machine_profile
from localspec.fit.machine_profile import MachineProfile, SimulatedHardware, simulate
from localspec.machine.device import HOST

GIB = 1 << 30


def of_cpu(name: str, ram: float | None = None) -> MachineProfile:
    return simulate(SimulatedHardware(cpu=name, ram=ram))


def read_gb_s(machine: MachineProfile) -> float:
    speed = machine.hardware.find_speed(HOST, "Q4_K")
    assert speed.bandwidth is not None
    return speed.bandwidth * speed.efficiency


def test_a_named_cpu_has_its_memory_and_no_gpu() -> None:
    machine = of_cpu("Ryzen 7 5800X", 32)

    assert machine.devices == ()
    assert machine.cpu.description == "Ryzen 7 5800X"
    assert machine.cpu.total == 32 * GIB
    assert machine.cpu.free == 28 * GIB, "4 GB are the operating system's"
    assert 30 < read_gb_s(machine) < 42
    assert not machine.hardware.measured_speeds


def test_a_cpu_is_named_with_its_memory() -> None:
    slower = of_cpu("i5-12400, DDR4-3200", 16)
    faster = of_cpu("i5-12400, DDR5-5600", 16)
    alone = of_cpu("i5-12400, one module of DDR4-3200", 16)

    ratio = read_gb_s(faster) / read_gb_s(slower)
    assert ratio == pytest.approx(5600 / 3200)
    assert read_gb_s(slower) / read_gb_s(alone) == pytest.approx(2)


def test_little_is_known_of_a_cpu_that_no_row_names() -> None:
    known = of_cpu("Ryzen 7 5800X").hardware.nominal_speeds[HOST]
    unknown = of_cpu("Frobnicator 9000").hardware.nominal_speeds[HOST]

    assert unknown.error > known.error
    assert "doctor --cpu" in unknown.basis


def test_a_gpu_is_put_beside_the_named_cpu() -> None:
    machine = simulate(SimulatedHardware(gpu="RTX 3060 12", cpu="N100", ram=16))

    (gpu,) = machine.devices
    assert gpu.description.startswith("RTX 3060")
    assert machine.cpu.total == 16 * GIB
    assert read_gb_s(machine) < 20


def test_other_ram_leaves_cpu_and_gpus_as_they_are() -> None:
    here = machine_profile.detect()
    machine = simulate(SimulatedHardware(ram=8))

    assert machine.cpu.total == 8 * GIB
    assert machine.cpu.free == 6 * GIB
    assert machine.devices == here.devices
    assert machine.hardware == here.hardware


@pytest.mark.parametrize(
    "hardware",
    [
        SimulatedHardware(gpu="M4 Pro 48", cpu="N100"),
        SimulatedHardware(gpu="Strix Halo", ram=64),
    ],
)
def test_a_gpu_that_shares_its_memory_brings_its_cpu(
    hardware: SimulatedHardware,
) -> None:
    with pytest.raises(UsageError, match="CPU of its own") as raised:
        simulate(hardware)
    assert "--vram" in str(raised.value.hint)
