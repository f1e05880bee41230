"""What a projector takes: the rule against llama.cpp's count, and where it is put."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import launch
from localspec.fit import suggestions
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import FitVerdict, Plan, place_projector
from localspec.machine.device import HOST, Device
from localspec.models import projector_shape
from localspec.models.gguf import reader
from localspec.models.projector_shape import ProjectorShape
from localspec.models.projectors import Senses
from localspec.protocol.wire import LoadCommand
from localspec.report.fit import describe_projector
from tests.support import ghost_projectors, shapes
from tests.support.long_cases import often
from tests.support.vision_models import VisionModels

_MIB = 1 << 20
_GIB = 1 << 30
_LARGEST_ERROR = 0.03
WARM_UP_ROWS = {
    "gemma3": 256,
    "gemma4": 256,
    "gemma4-12b": 256,
    "gemma4-12b-audio": 256,
    "gemma4-e4b-audio": 256,
    "muse-glimmer": 32 * 32,
    "pixtral": 256,
    "qwen2-audio": 0,
    "qwen35": 46 * 46,
    "smolvlm": 64,
}
"""Of the picture that llama.cpp counts (`set_warmup_n_tokens`)."""


@pytest.mark.skipif(sys.platform != "linux", reason="the call is GCC's")
@pytest.mark.parametrize("name", WARM_UP_ROWS)
def test_the_rule_is_as_large_as_llama_cpps_count(name: str, tmp_path: Path) -> None:
    tower = ghost_projectors.TOWERS[name]()
    path = tower.write(tmp_path / "mmproj.gguf")
    shape = projector_shape.from_header(reader.read(path))

    command = [sys.executable, "-m", "tests.support.projector_count", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    counted = int(done.stdout.split()[-1])

    compute = shape.compute_bytes(WARM_UP_ROWS[name], on_gpu=False)
    assert counted > shape.weights
    assert shape.weights + compute == pytest.approx(counted, rel=_LARGEST_ERROR / 3)
    assert compute == pytest.approx(counted - shape.weights, rel=_LARGEST_ERROR)


_TAKEN_ERROR = 0.06
PHOTO_BYTES = 72_000_000
"""Of a photograph of 12 million pixels, while it is decoded."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count otherwise")
@pytest.mark.parametrize("kind", often(("smolvlm", "gemma3", "qwen35"), ("qwen35",)))
def test_a_loaded_projector_takes_what_was_foretold(
    vision_models: VisionModels, kind: str, tmp_path: Path
) -> None:
    """A tower of true size beside a tiny model; its weights are a hole, read as zeros.

    The picture is smaller than a photograph.
    """
    files = vision_models[kind]
    n_text = reader.read(files.model).n_embd
    towers: dict[str, Callable[[int], ghost_projectors.Tower]] = {
        "smolvlm": ghost_projectors.smolvlm,
        "gemma3": ghost_projectors.gemma3,
        "qwen35": ghost_projectors.qwen35,
    }
    path = towers[kind](n_text).write(tmp_path / "mmproj.gguf")
    shape = projector_shape.from_header(reader.read(path))
    rows = shape.rows(on_gpu=False, n_batch=512)
    foretold = shape.weights + shape.compute_bytes(rows, on_gpu=False)
    foretold += shape.work_bytes(rows, on_gpu=False)
    foretold += shape.decoding_bytes(rows) - PHOTO_BYTES

    command = [sys.executable, "-m", "tests.support.projector_load"]
    command += [str(files.model), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    weights, buffer = map(int, done.stdout.split())

    print(f"{kind}: {foretold:,} foretold, {weights:,} + {buffer:,} taken")
    assert weights + buffer == pytest.approx(foretold, rel=_TAKEN_ERROR)


def test_rows_are_limited_by_the_device_the_kind_and_the_batch(tmp_path: Path) -> None:
    growing = read(ghost_projectors.qwen35(), tmp_path)
    fixed = read(ghost_projectors.gemma3(), tmp_path)
    in_one_pass = read(ghost_projectors.gemma4(), tmp_path)

    assert growing.rows(on_gpu=False, n_batch=512) == 1024
    assert growing.rows(on_gpu=True, n_batch=512) == 4096
    assert growing.rows(on_gpu=True, n_batch=512, limit=300) == 300
    assert fixed.rows(on_gpu=True, n_batch=512) == 256
    assert in_one_pass.rows(on_gpu=True, n_batch=512) == 512
    assert in_one_pass.rows(on_gpu=True, n_batch=2048) == 1120


def test_a_size_alone_gives_about_what_the_header_does(tmp_path: Path) -> None:
    exact = read(ghost_projectors.qwen35(), tmp_path)
    about = projector_shape.from_size(exact.weights)
    for on_gpu in (False, True):
        rows = exact.rows(on_gpu=on_gpu, n_batch=512)
        expected = exact.compute_bytes(rows, on_gpu=on_gpu)
        assert about.compute_bytes(rows, on_gpu=on_gpu) == pytest.approx(
            expected, rel=0.1
        )
    assert about.is_coarse
    assert not exact.is_coarse


def read(tower: ghost_projectors.Tower, folder: Path) -> ProjectorShape:
    return projector_shape.from_header(ghost_projectors.read_header(tower, folder))


# --- where it is put

PROJECTOR = projector_shape.from_size(900 * _MIB)


def make_request(pair: PairShapes, ctx: int | None) -> SettingsRequest:
    draft = None
    if pair.draft is not None:
        draft = pair.draft.name
    return SettingsRequest(LoadCommand(pair.target.name, draft=draft), ctx=ctx)


def advise(machine: MachineProfile, pair: PairShapes, ctx: int | None = None) -> Plan:
    advisor = SettingsAdvisor(*pair.shapes, machine)
    return advisor.advise(make_request(pair, ctx))


def with_projector(
    machine: MachineProfile, pair: PairShapes, ctx: int | None = None
) -> Plan:
    advisor = SettingsAdvisor(*pair.shapes, machine)
    request = make_request(pair, ctx)
    return advisor.with_projector(advisor.advise(request), PROJECTOR, request)


def test_a_card_with_room_gets_the_projector_and_the_settings_stay() -> None:
    machine = shapes.with_card("RTX 3090")
    pair = shapes.catalog_pair("gemma-4-12b+lookup")
    without = advise(machine, pair)
    plan = place_projector(without, PROJECTOR)

    assert plan.projector is not None
    assert plan.projector.device == machine.devices[0].name
    assert plan.load == without.load
    more = plan.device_fits[0].needed - without.device_fits[0].needed
    assert more == pytest.approx(plan.projector.needed, rel=0.03)
    assert plan.device_fits[0].memory_parts["projector"] == more
    parts = plan.device_fits[0].memory_parts
    assert sum(parts.values()) == plan.device_fits[0].needed


def test_on_a_full_card_the_projector_goes_to_ram_and_the_layers_stay() -> None:
    pair = shapes.catalog_pair("qwen3.5-9b+lookup")
    machine = shapes.with_card("RTX 3090", 8)
    without = advise(machine, pair, ctx=8192)
    assert without.verdict is FitVerdict.FITS

    plan = place_projector(without, PROJECTOR)

    assert plan.projector is not None
    assert plan.projector.device == HOST
    assert plan.load == without.load
    assert plan.device_fits == without.device_fits
    assert not plan.is_partly_in_ram
    assert plan.host.needed - without.host.needed >= PROJECTOR.weights
    said = describe_projector(plan, Senses(sees=True))
    assert "of this computer's memory, as the GPU has no room" in said


def test_a_context_that_nobody_asked_for_makes_room_down_to_a_long_one() -> None:
    pair = shapes.catalog_pair("qwen3.5-9b+lookup")
    for tenths in range(80, 160):
        machine = shapes.with_card("RTX 3090", 16)
        free = int(tenths * _GIB / 10)
        machine = shapes.with_free(machine, free)
        plan = with_projector(machine, pair)
        asked = with_projector(machine, pair, ctx=plan.load.target_settings.n_ctx)
        assert plan.projector is not None
        n_ctx = plan.load.target_settings.n_ctx or 0
        before = advise(machine, pair).load.target_settings.n_ctx or 0
        assert n_ctx <= before
        assert n_ctx == before or (n_ctx >= 16384 and plan.projector.on_gpu)
        assert asked.projector is not None
        assert asked.projector.on_gpu == plan.projector.on_gpu
        assert plan.verdict is not FitVerdict.NO


def test_without_room_anywhere_the_model_runs_without_its_projector() -> None:
    pair = shapes.catalog_pair("qwen3.5-4b+lookup")
    machine = shapes.computer(5.2)
    without = advise(machine, pair)
    assert without.verdict.can_load
    room = (machine.cpu.free or 0) - without.host.needed
    huge = projector_shape.from_size(room + _GIB)

    plan = place_projector(without, huge)

    assert plan.projector is not None
    assert plan.projector.device == ""
    assert plan.host == without.host
    said = describe_projector(plan, Senses(sees=True))
    assert said.startswith("sees images, but has no room for its projector (about ")


def shared_machine() -> MachineProfile:
    """A Mac of 64 GB, as it is detected."""
    limit = 48 * _GIB
    gpu = Device(
        "Metal0",
        "a GPU in the processor",
        kind="gpu",
        free=limit,
        total=limit,
        backend="Metal",
        unified=True,
    )
    size = 60 * _GIB
    return shapes.machine(gpu, cpu=replace(shapes.CPU, free=size, total=size))


def test_shared_memory_is_counted_once_with_a_projector() -> None:
    pair = shapes.catalog_pair("gemma-4-12b+lookup")
    machine = shared_machine()
    without = advise(machine, pair)
    plan = place_projector(without, PROJECTOR)
    assert plan.projector is not None
    assert plan.projector.on_gpu
    more = plan.host.needed - without.host.needed
    taken = plan.projector.needed + plan.projector.decoding
    assert more == pytest.approx(taken, rel=0.03)
    assert plan.without_projector() == without


def test_suggestions_are_judged_without_projectors() -> None:
    """Advice is about the models: what sees is said beside it."""
    machine = shapes.with_card("RTX 3090")
    before = suggestions.suggest(machine, launch.saved_criteria())
    assert any(each.pair.target.projector for each in before)
    assert all(each.plan is None or each.plan.projector is None for each in before)


def test_a_card_with_little_room_reads_pictures_with_fewer_rows(tmp_path: Path) -> None:
    """A mask of windows takes 1.5 GiB for 4,096 rows, and 0.1 GiB for 1,024."""
    shape = read(ghost_projectors.muse_glimmer(), tmp_path)
    machine = shapes.with_card("RTX 3090")
    pair = shapes.catalog_pair("gemma-4-12b+lookup")
    without = advise(machine, pair, ctx=8192)
    needed = without.device_fits[0].needed
    rows = []
    for more in (3 * _GIB, 2 * _GIB, _GIB // 2):
        free = needed + without.device_fits[0].reserve + without.error + more
        plan = advise(shapes.with_free(machine, free), pair, ctx=8192)
        placed = place_projector(plan, shape)
        assert placed.projector is not None
        rows.append((placed.projector.on_gpu, placed.projector.rows))
    assert rows == [(True, 4096), (True, 1024), (False, 1024)]
