"""The projector of a load: found or named, and placed where memory has room."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.errors import NotFoundError, PictureError
from localspec.launch import (
    NO_PROJECTOR,
    LoadOptions,
    ResolvedPair,
    choose_settings,
    sight,
    start_engine,
)
from localspec.models import projector_shape
from localspec.models.gguf import reader
from localspec.models.local_files import inventory
from localspec.protocol.events import EngineReady
from tests.support.vision_models import VisionFiles, VisionModels
from tests.support.zoo import Zoo


@pytest.fixture
def files(vision_models: VisionModels) -> VisionFiles:
    return vision_models["gemma3"]


def pair(files: VisionFiles) -> ResolvedPair:
    return ResolvedPair(files.model, None)


def test_the_projector_beside_a_model_is_loaded_with_it(files: VisionFiles) -> None:
    request = LoadOptions(image_tokens=99).to_request(pair(files))

    projector = request.load.projector
    assert projector is not None
    assert projector.path == str(files.projector)
    assert projector.max_rows == 99


def test_none_and_another_file_can_be_named(files: VisionFiles, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"

    none = LoadOptions(image_model=NO_PROJECTOR).to_request(pair(files))
    named = LoadOptions(image_model=str(other)).to_request(pair(files))

    assert none.load.projector is None
    assert named.load.projector is not None
    assert named.load.projector.path == str(other)


def test_a_model_without_a_projector_and_an_estimate_have_none(zoo: Zoo) -> None:
    blind = ResolvedPair(zoo["parrot"], None)
    no_file = ResolvedPair(Path(), None)

    for each in (blind, no_file):
        assert LoadOptions().to_request(each).load.projector is None


def test_a_plan_says_where_the_projector_is_and_what_it_takes(
    files: VisionFiles,
) -> None:
    request = LoadOptions(ctx=512).to_request(pair(files))

    plan = choose_settings(request)

    assert plan is not None
    assert plan.projector is not None
    assert plan.projector.weights > 0
    assert plan.load.projector is not None
    assert plan.load.projector.on_gpu == plan.projector.on_gpu


def test_what_is_used_is_compared_with_an_estimate_that_has_the_projector(
    files: VisionFiles,
) -> None:
    options = LoadOptions(ctx=512, threads=1)
    blind = start_engine(replace(options, image_model="none").to_request(pair(files)))
    blind.close()
    seeing = start_engine(options.to_request(pair(files)))
    seeing.close()

    def difference(name: str) -> int:
        with_projector = seeing.ready.memory[name]
        without = blind.ready.memory[name]
        assert with_projector is not None and without is not None
        return with_projector - without

    shape = projector_shape.from_header(reader.read(files.projector))
    rows = shape.rows(on_gpu=False, n_batch=512)
    needed = shape.weights + shape.compute_bytes(rows, on_gpu=False)
    needed += shape.work_bytes(rows, on_gpu=False)
    assert difference("weights") == shape.weights
    assert difference("predicted") == needed > shape.weights
    assert difference("used") >= needed


def test_a_projector_that_is_not_there_is_named(
    files: VisionFiles, tmp_path: Path
) -> None:
    missing = tmp_path / "mmproj-none.gguf"
    request = LoadOptions(ctx=512, image_model=str(missing)).to_request(pair(files))

    with pytest.raises(NotFoundError, match=r"mmproj-none\.gguf"):
        start_engine(request)


def test_whether_a_loaded_model_sees_is_told_by_its_settings() -> None:
    def ready(images: dict[str, object] | None) -> EngineReady:
        settings = {"images": images}
        return EngineReady({}, "m.gguf", None, ("CPU",), settings, {}, 1.0)

    seeing = {"kind": "gemma3", "max_rows": 256, "audio": False}

    sight.require_sight(ready(seeing))
    for blind in (None, seeing | {"max_rows": 0, "audio": True}):
        with pytest.raises(PictureError, match="m does not see"):
            sight.require_sight(ready(blind))


def test_the_error_names_models_of_the_catalogue_where_none_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inventory, "list_models", lambda: ())

    error = sight.no_sight_error("Demo")

    assert error.message == "Demo does not see pictures."
    assert error.hint.startswith("These do: ")
    assert error.hint.count(",") == 2


def test_a_model_that_only_lacks_its_projector_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inventory, "list_models", lambda: ())
    reference = sight.find_seeing_models()[0]

    error = sight.no_sight_error("Gemma", reference)

    assert "with its projector" in error.message
    assert f"localspec pull {reference}" in error.hint
