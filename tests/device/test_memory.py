"""What `fit` foretells is what llama.cpp takes, on each device."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.machine.device import Device
from localspec.models.catalog_entries import CatalogShape
from tests.support import families
from tests.support.families import FAMILIES
from tests.support.run_command import ROOT, environment

MAX_SHARE = 0.02
"""Of all bytes."""
SECONDS = 240
LARGE = CatalogShape(
    architecture="llama",
    layers=12,
    embd=1024,
    ff=4096,
    heads=16,
    kv_heads=8,
    vocab=32000,
    context=8192,
)
DRAFT = replace(LARGE, layers=4, embd=512, ff=1536, heads=8)
MOE = replace(FAMILIES["qwen3moe"].small, layers=8, embd=512, vocab=16000)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target of 200 MB, a draft, and a mixture of experts."""
    folder = tmp_path_factory.mktemp("device")
    shapes = {"target": LARGE, "draft": DRAFT, "moe": MOE}
    for name, shape in shapes.items():
        families.write_ghost(shape, "Q8_0", folder / f"{name}.gguf")
    return {name: folder / f"{name}.gguf" for name in shapes}


def load(
    file: Path, settings: dict[str, Any], visible: str = ""
) -> dict[str, dict[str, int]]:
    """Bytes by device, as load_child prints them.

    `visible` is the value of GGML_VK_VISIBLE_DEVICES.
    """
    command = [
        sys.executable,
        "-m",
        "tests.device.load_child",
        str(file),
        json.dumps(settings),
    ]
    variables = {}
    if visible:
        variables["GGML_VK_VISIBLE_DEVICES"] = visible
    env = environment(variables)
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Setting:
    name: str
    settings: dict[str, Any]
    file: str = "target"
    draft: dict[str, Any] = field(default_factory=dict)
    """Of a draft that is loaded beside it."""


BASE = {"n_ctx": 4096}
SETTINGS = (
    Setting("all layers", BASE),
    Setting("no layers", BASE | {"n_gpu_layers": 0}),
    Setting("5 of 13 layers", BASE | {"n_gpu_layers": 5}),
    Setting("target there, draft here", BASE, draft=BASE | {"n_gpu_layers": 0}),
    Setting("target here, draft there", BASE | {"n_gpu_layers": 0}, draft=BASE),
    Setting("KV in q8_0", BASE | {"kv_type": "q8_0"}),
    Setting("KV in q4_0, 5 layers", BASE | {"kv_type": "q4_0", "n_gpu_layers": 5}),
    Setting("no flash attention", BASE | {"flash_attn": "off"}),
    Setting("flash attention", BASE | {"flash_attn": "on"}),
    Setting("a batch of 1024", BASE | {"n_ubatch": 1024}),
    Setting("experts in RAM", BASE | {"cpu_moe": -1}, file="moe"),
    Setting("experts of 3 of 8 layers in RAM", BASE | {"cpu_moe": 3}, file="moe"),
)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_memory_is_taken_as_foretold(
    gpu: Device, files: dict[str, Path], setting: Setting
) -> None:
    found = [load(files[setting.file], setting.settings)]
    if setting.draft:
        found.append(load(files["draft"], setting.draft))
    compare(found)


@pytest.mark.parametrize("shares", [(), (3.0, 1.0)], ids=["by free memory", "3 to 1"])
def test_memory_on_two_devices(
    gpu: Device, files: dict[str, Path], shares: tuple[float, ...]
) -> None:
    """The same device twice: Vulkan allows that."""
    if gpu.backend != "Vulkan":
        pytest.skip("one device cannot be listed twice")
    found = load(files["target"], BASE | {"tensor_split": shares}, visible="0,0")
    assert found["taken"].keys() >= {"Vulkan0", "Vulkan1"}
    compare([found])


def compare(loads: list[dict[str, dict[str, int]]]) -> None:
    """`fit` shows what llama.cpp counts; formulas alone are upper bounds with an error."""
    sums: dict[str, Counter[str]] = {what: Counter() for what in loads[0]}
    for figures in loads:
        for what, by_device in figures.items():
            sums[what].update(by_device)
    total = sums["taken"].total()
    for device in {"CPU", *sums["taken"]}:
        taken = sums["taken"][device]
        wrongly_counted = abs(sums["counted"][device] - taken)
        assert wrongly_counted <= MAX_SHARE * total, (device, sums)
        wrongly_calculated = abs(sums["calculated"][device] - taken)
        assert wrongly_calculated <= sums["error"][device], (device, sums)
