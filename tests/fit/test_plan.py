"""fit/plan.py: GPUs of every size, shared memory, llama.cpp's count, past loads."""

import pytest
from msgspec.structs import replace

from localspec import launch
from localspec.fit import machine_profile, pair_shapes
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.plan import FitVerdict, Plan, count_plan, estimate_plan
from localspec.machine import memory_probe
from localspec.machine.device import HOST, Device
from localspec.machine.measurements import MemoryMeasurement
from localspec.machine.memory_probe import ModelBuffers, PairBuffers, ProbeError
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand
from localspec.report import fit as fit_report
from localspec.report.fit import FitAnswer
from localspec.report.lines import plain_text
from localspec.units import gib
from tests.support import families, shapes
from tests.support.zoo import Zoo

MIB = 1 << 20
GIB = 1 << 30


def settings(n_ctx: int, kv: str = "f16") -> LoadCommand:
    both = ContextSettings(n_ctx=n_ctx, kv_type=kv)  # type: ignore[arg-type]
    return LoadCommand("target", "draft", both, both)


def test_vulkans_copy_of_a_quantised_cache_is_counted() -> None:
    """128 MiB for a model of 8 B with a context of 32k; llama.cpp's own sums lack it."""
    pair = shapes.catalog_pair("llama-3.1-8b+llama-3.2-1b")
    overheads = {}
    for backend, kv in (("Vulkan", "f16"), ("Vulkan", "q8_0"), ("CUDA", "q8_0")):
        device = Device(f"{backend}0", free=24 * GIB, total=24 * GIB, backend=backend)
        load = replace(settings(32768, kv), draft=None)
        fit = estimate_plan(load, *pair.shapes, shapes.machine(device))
        (overheads[backend, kv],) = (each.overhead for each in fit.device_fits)
        safety = int(0.05 * fit.device_fits[0].target.compute)
        overheads[backend, kv] -= safety
    assert overheads["Vulkan", "q8_0"] == pytest.approx(128 << 20, abs=8)
    assert max(overheads["Vulkan", "f16"], overheads["CUDA", "q8_0"]) < 8


def shared_machine(kind: str, free: float) -> MachineProfile:
    """As detected: the GPU may use three quarters of what is available."""
    limit = int(0.75 * free * GIB)
    backend = "Metal" if kind == "gpu" else "Vulkan"
    gpu = Device(
        f"{backend}0",
        "a GPU in the processor",
        kind=kind,  # type: ignore[arg-type]
        free=limit,
        total=limit,
        backend=backend,
        unified=True,
    )
    cpu = Device(
        "CPU", kind="cpu", free=int(free * GIB), total=int(free * GIB), unified=True
    )
    return shapes.machine(gpu, cpu=cpu)


def in_shared_memory(kind: str, free: float, **settings: int) -> Plan:
    pair = shapes.catalog_pair("qwen2.5-coder-32b+qwen2.5-coder-0.5b")
    load = LoadCommand("target", "draft", ContextSettings(n_ctx=4096, **settings))  # type: ignore[arg-type]
    return estimate_plan(load, *pair.shapes, shared_machine(kind, free))


@pytest.mark.parametrize("kind", ["igpu", "gpu"])
def test_a_gpu_and_the_cpu_share_one_memory(kind: str) -> None:
    """Each had room for its half: 10 of 18 GB on the GPU and 10 of 24 GB on the CPU."""
    split = in_shared_memory(kind, 24, n_gpu_layers=33)
    (gpu,) = split.device_fits
    assert min(gpu.total, split.host.total) > 8 * GIB
    assert split.host.needed == split.total == gpu.total + split.host.total
    assert sum(split.host.memory_parts.values()) == split.host.needed
    assert split.verdict == "fits"
    assert split.tightest in (gpu, split.host)
    less = in_shared_memory(kind, 18, n_gpu_layers=33)
    assert less.device_fits[0].verdict == "fits", "of itself it has room"
    assert less.verdict == "no"
    assert less.host.verdict == "no"
    assert less.tightest is less.host
    assert less.missing_bytes == less.total - 18 * GIB, "nothing is missing twice"


@pytest.fixture(scope="module")
def shared_answer() -> FitAnswer:
    """About a GPU that shares 18 GB with the CPU, which are too few."""
    pair = shapes.catalog_pair("qwen2.5-coder-32b+qwen2.5-coder-0.5b")
    advisor = SettingsAdvisor(*pair.shapes, shared_machine("igpu", 18))
    load = LoadCommand("target", "draft", ContextSettings(n_ctx=4096))
    plan = advisor.advise(SettingsRequest(load, 4096, n_gpu_layers=33))
    return FitAnswer(pair, plan, advisor.list_memory_savings(plan), "chat")


def test_a_lack_of_shared_memory_is_one_of_the_computers(
    shared_answer: FitAnswer,
) -> None:
    plan = shared_answer.plan

    assert plan.verdict == "no"
    assert "of this computer's memory, which has 18.0 GB" in plan.explanation


def test_moving_the_draft_to_the_cpu_saves_no_shared_memory(
    shared_answer: FitAnswer,
) -> None:
    flags = {saving.flags for saving in shared_answer.savings}

    assert "--draft-gpu-layers 0" not in flags


def test_the_report_says_that_memory_is_shared(shared_answer: FitAnswer) -> None:
    text = "\n".join(map(plain_text, fit_report.format_fit(shared_answer, 80)))

    assert "shared with this computer" in text
    assert "with the GPU's" in text


def test_the_document_has_what_memory_is_shared(shared_answer: FitAnswer) -> None:
    shown = fit_report.fit_to_json(shared_answer)

    assert shown["host"]["shared"] == shown["devices"][0]["total"]


def test_the_tightest_device_is_the_one_that_decides() -> None:
    """A GPU that uses 2 GB of its reserve is tight; RAM that lacks less does not fit."""
    pair = shapes.catalog_pair("qwen2.5-coder-32b+qwen2.5-coder-0.5b")
    load = LoadCommand("target", "draft", ContextSettings(n_ctx=4096, n_gpu_layers=33))
    roomy = Device("CUDA0", free=64 * GIB, total=64 * GIB, backend="CUDA")
    cpu = replace(shapes.CPU, free=64 * GIB)
    needed = estimate_plan(load, *pair.shapes, shapes.machine(roomy, cpu=cpu))
    gpu = replace(roomy, free=needed.device_fits[0].needed + MIB)
    cpu = replace(cpu, free=needed.host.needed - MIB)
    plan = estimate_plan(load, *pair.shapes, shapes.machine(gpu, cpu=cpu))
    assert plan.device_fits[0].verdict is FitVerdict.TIGHT
    assert plan.device_fits[0].headroom < plan.host.headroom  # type: ignore[operator]
    assert plan.tightest is plan.host
    assert plan.tightest.verdict is plan.verdict is FitVerdict.NO


def test_a_gpu_of_unknown_memory_does_not_hide_that_system_memory_is_tight() -> None:
    pair = shapes.catalog_pair("qwen2.5-coder-32b+qwen2.5-coder-0.5b")
    load = LoadCommand("target", "draft", ContextSettings(n_ctx=4096, n_gpu_layers=33))
    gpu = Device("Vulkan0", backend="Vulkan")
    roomy = replace(shapes.CPU, free=64 * GIB)
    needed = estimate_plan(
        load, *pair.shapes, shapes.machine(gpu, cpu=roomy)
    ).host.needed

    tight = replace(roomy, free=needed + MIB)
    plan = estimate_plan(load, *pair.shapes, shapes.machine(gpu, cpu=tight))

    assert plan.host.verdict is FitVerdict.TIGHT
    assert plan.verdict is FitVerdict.UNKNOWN
    assert not plan.has_room
    assert estimate_plan(load, *pair.shapes, shapes.machine(gpu, cpu=roomy)).has_room


def test_verdicts_rank_from_the_worst_to_the_best() -> None:
    ranked = sorted(FitVerdict, key=lambda verdict: verdict.rank)
    assert ranked == ["no", "unknown", "tight", "fits"]
    assert [verdict.can_load for verdict in ranked] == [False, True, True, True]
    assert [verdict.has_room for verdict in ranked] == [False, True, False, True]


# llama.cpp's count decides where the error of the estimate is too large.


@pytest.fixture(scope="module")
def model() -> tuple[LoadCommand, Header]:
    settings = ContextSettings(n_ctx=4096, n_threads=1, n_gpu_layers=0)
    load = LoadCommand("mamba2", target_settings=settings)
    return load, families.header("mamba2")


def machine(free: int, *devices: Device) -> MachineProfile:
    return shapes.machine(*devices, cpu=replace(shapes.CPU, free=free))


def estimate(model: tuple[LoadCommand, Header], free: int, *devices: Device) -> Plan:
    return shapes.estimate_plan(model[0], model[1], None, machine(free, *devices))


def test_only_a_close_fit_is_worth_a_count(model: tuple[LoadCommand, Header]) -> None:
    needed = estimate(model, 64 * GIB).host.total
    for free, judged, is_close in (
        (64 * GIB, "fits", False),
        (needed + GIB, "tight", True),
        (needed + MIB, "tight", True),
        (needed - MIB, "no", True),
        (needed - GIB, "no", False),
    ):
        fit = estimate(model, free)
        assert (fit.verdict, fit.is_too_close) == (judged, is_close), free


def test_a_count_may_find_that_it_fits(model: tuple[LoadCommand, Header]) -> None:
    """The estimate is an upper bound."""
    _, header = model
    free = estimate(model, 64 * GIB).host.total - 5 * MIB
    fit = estimate(model, free)
    counted = count_plan(fit, pair_shapes.from_headers(header, None), machine(free))
    assert (fit.verdict, counted.verdict) == ("no", "tight")
    assert counted.memory.method == "exact"
    assert counted.host.target.compute < fit.host.target.compute
    assert counted.host.target.weights == fit.host.target.weights


def test_a_count_that_does_not_fit_starts_a_new_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """llama.cpp that needs 320 KiB of buffers a token: 2.5 GB for a context of 8192."""

    def count(load: LoadCommand, *_: object, **__: object) -> PairBuffers:
        n_ctx = load.target_settings.n_ctx or 0
        return PairBuffers(ModelBuffers({"CPU": n_ctx * 320 * 1024}, kv=0), None)

    monkeypatch.setattr(memory_probe, "count_buffers", count)
    free = estimate((LOAD, QWEN), 64 * GIB).host.total + 2 * GIB
    pair = pair_shapes.from_headers(QWEN, None)
    advisor = SettingsAdvisor(*pair.shapes, machine(free))
    request = SettingsRequest(replace(LOAD, target_settings=ContextSettings()))
    first = advisor.advise(request)
    assert first.verdict is FitVerdict.FITS
    assert first.load.target_settings.n_ctx == 8192

    plan = advisor.advise_counted(request, pair)

    assert count_plan(first, pair, machine(free)).verdict is FitVerdict.NO
    assert plan.verdict.can_load
    assert plan.memory.method == "exact"
    assert plan.load.target_settings != first.load.target_settings
    assert plan.host.device.free == free, "judged by what is really free"


def test_the_reason_says_about_until_llama_cpp_has_counted() -> None:
    free = 64 * GIB
    pair = pair_shapes.from_headers(QWEN, None)
    plan = SettingsAdvisor(*pair.shapes, machine(free)).advise(SettingsRequest(LOAD))

    counted = count_plan(plan, pair, machine(free))

    spare = gib(plan.host.headroom or 0)
    assert f": about {spare} of this computer's memory" in plan.explanation
    counted_spare = gib(counted.host.headroom or 0)
    assert f": {counted_spare} of this computer's memory" in counted.explanation


def test_a_pair_that_fits_with_no_settings_is_reported_as_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count(*_: object, **__: object) -> PairBuffers:
        return PairBuffers(ModelBuffers({"CPU": 64 * GIB}, kv=0), None)

    monkeypatch.setattr(memory_probe, "count_buffers", count)
    pair = pair_shapes.from_headers(QWEN, None)
    advisor = SettingsAdvisor(*pair.shapes, machine(16 * GIB))
    plan = advisor.advise_counted(SettingsRequest(LOAD), pair)
    assert plan.verdict is FitVerdict.NO
    assert plan.memory.method == "exact"


def test_a_count_on_other_devices_is_refused(model: tuple[LoadCommand, Header]) -> None:
    """llama.cpp does not list a GPU that the fit uses."""
    load, header = model
    on_gpu = replace(load.target_settings, n_gpu_layers=-1)
    gpu = Device("CUDA0", free=8 * GIB, total=8 * GIB, backend="CUDA")
    with_gpu = machine(64 * GIB, gpu)
    plan = shapes.estimate_plan(
        replace(load, target_settings=on_gpu), header, None, with_gpu
    )
    assert set(plan.memory.target.on) == {"CUDA0", HOST}
    with pytest.raises(ProbeError, match="other devices"):
        count_plan(plan, pair_shapes.from_headers(header, None), with_gpu)


# Memory of earlier loads on this computer corrects later estimates.


GPU = Device("CUDA0", "a card", free=24 * GIB, total=24 * GIB, backend="CUDA")
QWEN = families.header("qwen3")
LOAD = LoadCommand("target", None, ContextSettings(n_ctx=8192))


def estimate_after(*past: MemoryMeasurement, gpu: Device = GPU) -> Plan:
    return shapes.estimate_plan(LOAD, QWEN, None, shapes.machine(gpu, past=past))


def past_load(size: int, used: int) -> MemoryMeasurement:
    return MemoryMeasurement({"CUDA0": size}, {"CUDA0": used})


def test_what_needed_more_than_estimated_is_not_said_to_fit_again() -> None:
    """Whatever its architecture: 4 % more than estimated, seen on this device."""
    plain = estimate_after()
    needed = plain.device_fits[0].total
    size = plain.memory.of("CUDA0").total
    seen = past_load(size, int(1.04 * size))
    gpu = replace(GPU, free=int(1.02 * needed), total=int(1.02 * needed))
    assert estimate_after(gpu=gpu).verdict.can_load
    assert not estimate_after(seen, gpu=gpu).verdict.can_load


def test_a_few_mib_of_a_small_model_are_no_share_of_a_large_one() -> None:
    plain = estimate_after()
    needed = plain.device_fits[0].total
    size = plain.memory.of("CUDA0").total // 8
    gpu = replace(GPU, free=int(1.02 * needed), total=int(1.02 * needed))
    assert estimate_after(past_load(size, int(1.04 * size)), gpu=gpu).verdict.can_load


def test_real_loads_are_remembered(zoo: Zoo) -> None:
    path = str(zoo["target"])
    settings = ContextSettings(n_ctx=256, n_threads=1)
    launch.start_engine(SettingsRequest(LoadCommand(path, None, settings), 256)).close()
    (load,) = machine_profile.detect().past_loads
    assert 0 <= load.predicted[HOST] - load.used[HOST] <= 16 * MIB


def test_ram_with_experts_is_not_compared_because_a_mapped_file_counts_whole(
    zoo: Zoo,
) -> None:
    load = LoadCommand(
        str(zoo["target"]), None, ContextSettings(n_ctx=264, n_threads=1, cpu_moe=1)
    )
    launch.start_engine(SettingsRequest(load, 264)).close()
    assert not machine_profile.detect().past_loads
