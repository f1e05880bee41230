"""A GPU, a catalogue and estimates made by hand, so that no formula changes the wizard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace
from textual.screen import Screen

from localspec.fit.machine_profile import MachineProfile
from localspec.fit.memory import MemoryByDevice, MemoryEstimate
from localspec.fit.plan import DeviceFit, Plan
from localspec.fit.speed import (
    TYPICAL_CPU_SPEED,
    UNKNOWN_CPU_SPEED,
    SpeedEstimate,
    WorkloadSpeed,
    from_devices,
)
from localspec.machine.device import Device, DeviceMemory
from localspec.models import catalog
from localspec.models.catalog import Catalog, CatalogPair
from localspec.models.hub.client import HubClient
from localspec.protocol.wire import ContextSettings, LoadCommand
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.wizard import WizardScreen
from localspec.tui.wizard.shortlist import Candidate, WizardServices
from localspec.tui.wizard.what_if import WhatIf

GIB = 1 << 30
CARD = Device(
    "CUDA0",
    "NVIDIA GeForce RTX 4070",
    "gpu",
    int(10.9 * GIB),
    12 * GIB,
    "CUDA",
    driver="570.1",
)
CPU = Device("CPU", "8 cores", "cpu", 24 * GIB, 32 * GIB, "CPU", unified=True)
PLACE = MachineProfile((CARD,), CPU, from_devices((CARD,), TYPICAL_CPU_SPEED))
NO_CARD = MachineProfile((), CPU, from_devices((), UNKNOWN_CPU_SPEED))

MODELS = """\
schema: 1
models:
  - {id: qwen3-8b, title: Qwen3 8B, repo: a/A-GGUF, file: A-Q4_K_M.gguf, bytes: 5027783488,
     licence: apache-2.0, family: qwen3, architecture: qwen3, parameters: 8.19B,
     use: [chat, writing], shape: {layers: 36, embd: 4096, ff: 12288, heads: 32, kv_heads: 8,
       head_dim: 128, vocab: 151936, context: 40960, source: published}}
  - {id: qwen3-0.6b, title: Qwen3 0.6B, repo: a/B-GGUF, file: B-Q8_0.gguf, bytes: 639446688,
     licence: apache-2.0, family: qwen3, architecture: qwen3, parameters: 0.6B,
     shape: {layers: 28, embd: 1024, ff: 3072, heads: 16, kv_heads: 8, head_dim: 128, vocab: 151936,
             context: 40960, tied: true, source: published}}
  - {id: qwen3-1.7b, title: Qwen3 1.7B, repo: a/C-GGUF, file: C-Q8_0.gguf, bytes: 1834426016,
     family: qwen3, architecture: qwen3, parameters: 1.7B,
     shape: {layers: 28, embd: 2048, ff: 6144, heads: 16, kv_heads: 8, head_dim: 128, vocab: 151936,
             context: 40960, tied: true, source: published}}
  - {id: phi-4, title: Phi-4, repo: a/D-GGUF, file: D-Q4_K_M.gguf, bytes: 9053114816, licence: mit,
     family: phi4, architecture: phi3, parameters: 14.7B, use: [chat, writing],
     shape: {layers: 40, embd: 5120, ff: 17920, heads: 40, kv_heads: 10, vocab: 100352,
             context: 16384, source: published}}
  - {id: shapeless-12b, title: No shape, repo: a/E-GGUF, file: E-Q4_K_M.gguf, bytes: 7000000000,
     licence: other, parameters: 12B, use: [chat]}
pairs:
  - {target: qwen3-8b, draft: qwen3-0.6b}
  - {target: qwen3-8b, draft: qwen3-1.7b}
  - {target: phi-4}
  - {target: shapeless-12b}
"""


class Price(Struct, frozen=True):
    """GiB of the card, and tokens a second."""

    target: float
    draft: float
    kv: float
    work: float
    plain: tuple[float, float]
    gain: tuple[float, float]


PRICES = {
    "qwen3-8b+qwen3-0.6b": Price(
        target=4.7, draft=0.6, kv=1.3, work=0.4, plain=(38, 44), gain=(2.0, 2.4)
    ),
    "qwen3-8b+qwen3-1.7b": Price(
        target=4.7, draft=1.7, kv=1.9, work=0.5, plain=(38, 44), gain=(1.4, 1.7)
    ),
    "phi-4+lookup": Price(
        target=8.4, draft=0, kv=1.6, work=0.5, plain=(29, 33), gain=(1.0, 1.1)
    ),
}


def catalogue(folder: Path) -> Catalog:
    path = folder / "models-of-the-wizard.yaml"
    path.write_text(MODELS, encoding="utf-8")
    return catalog.load(path)


def fit(price: Price, place: MachineProfile = PLACE) -> Plan:
    half = int(price.kv * GIB / 2)
    target = DeviceMemory(int(price.target * GIB), half, int(price.work * GIB))
    draft = DeviceMemory(int(price.draft * GIB), half, 0)
    host = DeviceFit(
        place.cpu, GIB, DeviceMemory(int(0.3 * GIB)), DeviceMemory(), 0, GIB // 8
    )
    load = LoadCommand(
        "target", "draft", ContextSettings(n_ctx=16384), ContextSettings()
    )
    projection = MemoryEstimate(
        MemoryByDevice({}, 0), MemoryByDevice({}, 0), "analytic"
    )
    rooms = tuple(
        DeviceFit(device, GIB // 2, target, draft) for device in place.devices
    )
    if not rooms:
        host = replace(host, target=target, draft=draft)
    return Plan(load, rooms, host, projection, speed(price))


def speed(price: Price) -> SpeedEstimate:
    low, high = price.plain
    least, most = price.gain
    drafted = (low * least, high * most)
    ways = {
        name: WorkloadSpeed((max(1.0, least + more), max(1.0, most + more)), drafted)
        for name, more in (
            ("chat", 0.0),
            ("code", 0.4),
            ("writing", -0.5),
            ("documents", 0.2),
        )
    }
    why = "CUDA0: 504 GB/s (RTX 4070); typical acceptance rate for chat"
    return SpeedEstimate(price.plain, drafted, ways, why)


def candidates(
    place: MachineProfile, use: str, what: WhatIf, known: Catalog
) -> tuple[Candidate, ...]:
    """What `suggest` would say."""
    return (
        _candidate(known.pairs["qwen3-8b+qwen3-0.6b"], place),
        _candidate(known.pairs["phi-4+lookup"], place),
        replace(
            _candidate(known.pairs["shapeless-12b+lookup"], place),
            no_fit_reason="model shape not in the catalogue; 6.5 GB of files",
            size_verdict="fits",
        ),
    )


def _candidate(pair: CatalogPair, place: MachineProfile) -> Candidate:
    price = PRICES.get(pair.id)
    why = "same family · a draft token costs 8% of a target pass" if pair.draft else ""
    reasons = (
        ("good for chat", pair.target.note) if pair.target.note else ("good for chat",)
    )
    return Candidate(
        pair, pair.size or 0, fit(price, place) if price else None, reasons, why
    )


def _no_hub() -> HubClient:
    raise AssertionError("the hub is not asked")


def stock(
    folder: Path,
    place: MachineProfile = PLACE,
    suggest: Callable[..., tuple[Candidate, ...]] = candidates,
    **methods: Callable[..., Any],
) -> WizardServices:
    """Services that measure nothing and ask no hub.

    `methods` replace those of the services.
    """
    services = WizardServices(catalogue(folder), lambda: place, {}, _no_hub)
    defaults: dict[str, Callable[..., Any]] = {
        "suggest": lambda *asked: suggest(*asked, services.catalogue),
        "read_headers": lambda _: None,
        "count_memory": lambda candidate, *_: candidate,
        "free_disk": lambda: 212 * 10**9,
    }
    for name, method in (*defaults.items(), *methods.items()):
        setattr(services, name, method)
    return services


def app(
    stock: WizardServices,
    options: AppOptions | None = None,
    runner: EngineRunner | None = None,
) -> LocalspecApp:
    wanted = options or AppOptions(seed=1)
    engines = runner or EngineRunner()

    def first() -> Screen[None]:
        return cast(
            Screen[None], WizardScreen(engines, wanted, DownloadManager(), stock)
        )

    return LocalspecApp(wanted, engines, first)
