"""fit/report.py: ten pairs on every GPU; sums add up and grow with the context."""

from __future__ import annotations

import pytest

from localspec.fit import device_speed, pair_headers, report
from localspec.fit.machine_profile import MachineProfile
from localspec.machine import gpu_catalog
from localspec.machine.device import Device, reserve_bytes
from localspec.machine.gpu_catalog import GpuSpec
from localspec.machine.memory_by_device import HOST
from localspec.models import catalog
from localspec.protocol.wire import ContextSettings, LoadCommand

GIB = 1 << 30
CPU = Device("CPU", kind="cpu", free=28 * GIB, total=32 * GIB, unified=True)
PAIRS = (
    "llama-3.2-3b+llama-3.2-1b",
    "llama-3.1-8b+llama-3.2-1b",
    "qwen3-8b+qwen3-0.6b",
    "qwen3-30b-a3b+qwen3-0.6b",
    "qwen2.5-coder-32b+qwen2.5-coder-0.5b",
    "gemma-3-12b+gemma-3-270m",
    "gpt-oss-20b+lookup",
    "llama-3.3-70b+llama-3.2-1b",
    "smollm2-1.7b+smollm2-135m",
    "granite-4.1-8b+granite-4.0-350m",
)


def settings(n_ctx: int, kv: str = "f16") -> LoadCommand:
    both = ContextSettings(n_ctx=n_ctx, kv_type=kv)  # type: ignore[arg-type]
    return LoadCommand("target", "draft", both, both)


@pytest.mark.parametrize("card", gpu_catalog.load(), ids=lambda card: card.name)
def test_every_card_by_ten_pairs(card: GpuSpec) -> None:
    device = card.as_device()
    machine = MachineProfile(
        (device,), CPU, device_speed.from_devices((device,), device_speed.TYPICAL_CPU_SPEED)
    )
    known = catalog.load().pairs
    for name in PAIRS:
        headers = pair_headers.from_catalog(known[name])
        assert headers is not None, name
        totals = []
        for load in (settings(2048), settings(8192, "q8_0"), settings(8192), settings(32768)):
            fit = report.estimate_fit(load, *headers.headers, machine)
            totals.append(fit.device_fits[0].total)
            assert fit.verdict in ("fits", "tight", "no")
            assert (fit.verdict == "no") == (fit.missing_bytes > 0)
            check(fit)
        assert totals == sorted(totals), name


def check(fit: report.FitReport) -> None:
    for device_fit in fit.all_fits:
        name = HOST if device_fit is fit.host else device_fit.device.name
        sums = fit.memory_estimate.of(name).total + device_fit.output + device_fit.overhead
        assert device_fit.total == sums
        assert (
            device_fit.headroom
            == (device_fit.device.free or 0) - reserve_bytes(device_fit.device) - device_fit.total
        )
    assert fit.speed.plain is not None
    assert fit.speed.speculative is not None
    low, high = fit.speed.plain
    assert 0 < low < high < 3000
    assert fit.speed.speculative[0] >= 0.9 * low
