"""llama.cpp counts on simulated GPUs what it counted before.

The recorded sizes are of ggml devices written in C++, with the same rules of the
backends.
"""

import platform

import pytest
from msgspec.structs import replace

from localspec.machine import memory_probe
from localspec.machine.memory_probe import ModelBuffers
from tests.support import gpu_counts, shapes
from tests.support.gpu_counts import GpuCount
from tests.support.long_cases import often

PRINTED = 0.011 * (1 << 20)
"""llama.cpp prints hundredths of a MiB, here in up to two lines."""
COUNTS = {f"{i}-{count.name}": count for i, count in enumerate(gpu_counts.read())}


def is_head(count: GpuCount) -> bool:
    return count.models[0] == count.models[1] or "head" in (count.models[1] or "")


MODELS = [name for name, count in COUNTS.items() if not is_head(count)]
HEADS = [name for name, count in COUNTS.items() if is_head(count)]

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="recorded on x86-64"
)


def count_on(count: GpuCount) -> memory_probe.PairBuffers:
    # recorded before the draft had branches
    load = replace(count.load, overlap=False)
    estimate = shapes.estimate_pair(load, *count.headers, count.devices)
    return memory_probe.count_buffers(
        load,
        *count.headers,
        simulated=count.devices,
        used_by_target={name: part.total for name, part in estimate.target.on.items()},
    )


@pytest.mark.parametrize("name", often(MODELS, MODELS[::12]))
def test_models_need_what_was_recorded(name: str) -> None:
    count = COUNTS[name]
    counted = count_on(count)
    check_compute(counted.target, count, "target")
    if counted.draft is not None:
        check_compute(counted.draft, count, "draft")


MISJUDGED_STATES = {
    "137-dflash-gemma4": "122 MiB too much, stated ± 39 MiB",
    "147-eagle3-gpt-oss": "122 MiB too little on one of two devices, stated ± 10 MiB",
    "156-eagle3-llama-8b": "28 MiB too little, stated ± 12 MiB",
}
"""The hidden states of these targets do not take what `fit/memory.py` adds for them."""


@pytest.mark.parametrize("name", often(HEADS, HEADS[::12]))
def test_heads_need_what_was_recorded(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Their targets too, with the hidden states, which llama.cpp reserves later."""
    if name in MISJUDGED_STATES:
        reason = MISJUDGED_STATES[name]
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    count = COUNTS[name]
    load = replace(count.load, overlap=False)
    counted = count_on(count)
    assert counted.draft is not None
    check_compute(counted.draft, count, "draft")
    estimate = shapes.estimate_pair(load, *count.headers, count.devices)
    exact = shapes.replace_counted(estimate, load, count.headers, counted)
    for device in exact.target.on.keys() | count.exact.target.on.keys():
        off = exact.target.of(device).compute - count.exact.target.of(device).compute
        assert abs(off) <= exact.error + PRINTED, device


def check_compute(counted: ModelBuffers, count: GpuCount, which: str) -> None:
    recorded = getattr(count.exact, which)
    for name in counted.compute.keys() | recorded.on.keys():
        off = counted.compute.get(name, 0) - recorded.of(name).compute
        assert abs(off) <= 2 * PRINTED, (which, name)
