"""Tests with a real device: `scripts/test --device BACKEND`.

Without that option they are not collected.
"""

import pytest

from localspec.machine import device_detection
from localspec.machine.device import Device


@pytest.fixture(scope="session")
def gpu(request: pytest.FixtureRequest) -> Device:
    """The first device. A lane without one fails."""
    detected = device_detection.detect_devices(refresh=True)
    assert detected.devices, detected.note or "llama.cpp finds no device"
    device = detected.devices[0]
    assert device.backend.lower() == request.config.getoption("--device")
    return device
