"""What a pull would do, and what is refused before it does."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.errors import AccessDeniedError, ChecksumError, StorageError
from localspec.models import model_lookup, pull_plan
from localspec.models.catalog import CatalogModel
from localspec.models.catalog_entries import CatalogProjector
from localspec.models.gguf import reader
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import download_file
from localspec.models.local_files import inventory
from localspec.models.model_lookup import ModelRequest
from localspec.models.pull_plan import PlannedModel
from tests.support import ghost_projectors
from tests.support.fake_hub import API, BODY, FakeHub, Fault
from tests.support.zoo import Zoo

REPO = "org/Tiny-GGUF"
FILE = "Tiny-Q8_0.gguf"
DRAFT_FILE = "Draft-Q4_K_M.gguf"


@pytest.fixture
def hub(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with FakeHub() as hub:
        hub.add(REPO, FILE, zoo["target"].read_bytes())
        hub.add(REPO, DRAFT_FILE, zoo["cousin"].read_bytes())
        yield hub


def make_request(**known: object) -> ModelRequest:
    """The model as a catalogue entry that knows these of its fields."""
    entry = replace(CatalogModel("tiny", "Tiny", REPO, FILE), **known)
    return ModelRequest("tiny", model_lookup.from_catalog(entry))


def plan_model(client: HubClient, request: ModelRequest) -> PlannedModel:
    (model,) = pull_plan.build(client, [request]).models
    return model


def pull(client: HubClient, model: PlannedModel) -> Path:
    """Downloads a model of one file."""
    (file,) = model.files
    return download_file(client, file.job)


def test_a_plan_takes_one_listing_of_files_and_one_header_a_model(hub: FakeHub) -> None:
    draft = model_lookup.resolve(f"{REPO}:Q4_K_M")
    pair = ModelRequest("p", make_request().target, draft.target)

    plan = pull_plan.build(HubClient(hub.url), [pair, make_request()])

    assert [model.file for model in plan.models] == [FILE, DRAFT_FILE]
    assert plan.missing_bytes == plan.size > 0
    (planned_pair,) = plan.pairs
    assert planned_pair.compatibility.is_compatible
    kinds = [request.kind for request in hub.requests]
    assert kinds.count(API) == 1
    assert kinds.count(BODY) == 2


@pytest.mark.parametrize("spelling", ["ORG/tiny-gguf", "former/Name-GGUF"])
def test_another_spelling_or_a_former_name_is_the_same_model(
    hub: FakeHub, spelling: str
) -> None:
    hub.names["former/Name-GGUF"] = REPO
    client = HubClient(hub.url)
    path = pull(client, plan_model(client, make_request()))
    request = model_lookup.resolve(f"{spelling}:Q8_0")

    model = plan_model(client, request)

    assert model.repo == REPO
    assert model.path == path
    assert model.missing_bytes == 0
    assert [local.repo for local in inventory.list_models()] == [REPO]


def test_without_the_hub_another_spelling_is_known_but_no_former_name(
    hub: FakeHub,
) -> None:
    hub.names["former/Name-GGUF"] = REPO
    client = HubClient(hub.url)
    path = pull(client, plan_model(client, make_request()))

    other_spelling = model_lookup.resolve("ORG/tiny-gguf:Q8_0")
    former_name = model_lookup.resolve("former/Name-GGUF:Q8_0")

    assert other_spelling.target.find_path() == path
    assert former_name.target.find_path() is None


@pytest.mark.parametrize("status", [401, 403])
def test_an_expired_token_does_not_block_a_model_that_is_here(
    hub: FakeHub, status: int
) -> None:
    client = HubClient(hub.url)
    path = pull(client, plan_model(client, make_request()))
    hub.always[API] = Fault("status", status=status)

    model = plan_model(client, make_request())

    assert model.path == path
    assert model.missing_bytes == 0
    assert str(status) in model.notes[0]
    with pytest.raises(AccessDeniedError, match=str(status)):
        plan_model(client, model_lookup.resolve(f"{REPO}:Q4_K_M"))


def test_a_file_that_is_not_listed_is_not_planned_as_present(
    hub: FakeHub, tmp_path: Path
) -> None:
    """Property: whatever a link leads to, `list` and `pull` agree."""
    client = HubClient(hub.url)
    request = model_lookup.resolve(f"{REPO}:Q8_0")
    model = plan_model(client, request)
    path = pull(client, model)
    outside = tmp_path / "outside.gguf"
    shutil.copy(path, outside)
    path.unlink()
    path.symlink_to(outside)
    blobs = path.parents[2] / "blobs"
    blobs.joinpath(model.files[0].job.file.digest).unlink()

    again = plan_model(client, request)

    assert inventory.list_models() == ()
    assert again.path is None
    assert request.target.find_path() is None


def test_a_disk_that_is_too_small_is_reported_before_the_download(hub: FakeHub) -> None:
    plan = pull_plan.build(HubClient(hub.url), [make_request()])
    plan.check()

    with pytest.raises(StorageError, match="MB free"):
        replace(plan, free_bytes=100).check()


def test_a_file_with_another_checksum_than_the_catalogue_s_is_refused(
    hub: FakeHub,
) -> None:
    with pytest.raises(ChecksumError, match="differs from the catalogue"):
        plan_model(HubClient(hub.url), make_request(sha256="0" * 64))


def test_a_file_of_another_size_than_the_catalogue_s_has_a_note(hub: FakeHub) -> None:
    model = plan_model(HubClient(hub.url), make_request(bytes=7))

    assert "replaced since" in model.notes[0]


def test_the_bytes_of_a_partial_file_are_not_missing(
    hub: FakeHub, tmp_path: Path
) -> None:
    file = hub.repos[REPO][FILE]
    blobs = tmp_path / "hub" / "models--org--Tiny-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{file.sha256}.localspec.part"
    partial.write_bytes(file.data[:1000])

    plan = pull_plan.build(HubClient(hub.url), [make_request()])

    assert plan.missing_bytes == plan.size - 1000


# --- projectors

PROJECTOR = "mmproj-F16.gguf"
ELSEWHERE = "else/Projectors-GGUF"


@pytest.fixture
def projector(zoo: Zoo, tmp_path: Path) -> bytes:
    """One that fits the model of the hub."""
    width = reader.read(zoo["target"]).n_embd
    tower = ghost_projectors.tiny("idefics3", width)
    return tower.write(tmp_path / "made" / PROJECTOR).read_bytes()


def test_a_model_that_sees_comes_with_the_projector_of_its_repository(
    hub: FakeHub, projector: bytes
) -> None:
    hub.add(REPO, PROJECTOR, projector)
    client = HubClient(hub.url)
    request = model_lookup.resolve(f"{REPO}:Q8_0")

    plan = pull_plan.build(client, [request])

    (model,) = plan.models
    assert model.projector is not None
    assert model.projector.name == PROJECTOR
    assert model.projector.senses.sees
    assert plan.size == plan.missing_bytes == (model.size or 0) + len(projector)
    assert [file.job.file.path for file in model.all_files] == [FILE, PROJECTOR]
    assert plan.has_missing_projector
    assert plan.without_projectors().missing_bytes == model.size

    for file in model.all_files:
        download_file(client, file.job)
    again = pull_plan.build(client, [request])
    assert again.missing_bytes == 0
    assert again.models[0].projector is not None
    assert not again.has_missing_projector


def test_nobody_has_to_take_a_projector(hub: FakeHub, projector: bytes) -> None:
    hub.add(REPO, PROJECTOR, projector)
    request = model_lookup.resolve(f"{REPO}:Q8_0")
    plan = pull_plan.build(HubClient(hub.url), [request], with_projectors=False)
    assert plan.models[0].projector is None
    assert plan.models[0].all_files == plan.models[0].files


def test_the_catalogues_projector_may_be_in_another_repository(
    hub: FakeHub, projector: bytes
) -> None:
    hub.add(ELSEWHERE, PROJECTOR, projector)
    listed = CatalogProjector(ELSEWHERE, PROJECTOR)
    request = make_request(projector=listed, sees=("image",))
    model = plan_model(HubClient(hub.url), request)
    assert model.projector is not None
    assert model.projector.repo == ELSEWHERE
    assert model.notes == ()


def test_a_draft_has_no_projector(hub: FakeHub, projector: bytes) -> None:
    hub.add(REPO, PROJECTOR, projector)
    draft = model_lookup.resolve(f"{REPO}:Q4_K_M")
    pair = ModelRequest("p", model_lookup.resolve(f"{REPO}:Q8_0").target, draft.target)
    target, planned_draft = pull_plan.build(HubClient(hub.url), [pair]).models
    assert target.projector is not None
    assert planned_draft.projector is None


def test_a_projector_of_another_width_is_not_planned(
    hub: FakeHub, tmp_path: Path
) -> None:
    tower = ghost_projectors.tiny("idefics3", 48)
    hub.add(REPO, PROJECTOR, tower.write(tmp_path / PROJECTOR).read_bytes())
    model = plan_model(HubClient(hub.url), model_lookup.resolve(f"{REPO}:Q8_0"))
    assert model.projector is None
    assert model.notes == ()


@pytest.mark.parametrize("problem", ["gone", "replaced", "no repository"])
def test_a_projector_that_cannot_be_had_keeps_nobody_from_the_model(
    hub: FakeHub, projector: bytes, problem: str
) -> None:
    listed = CatalogProjector(ELSEWHERE, PROJECTOR)
    if problem != "no repository":
        hub.add(ELSEWHERE, "mmproj-other.gguf", projector)
    if problem == "replaced":
        hub.add(ELSEWHERE, PROJECTOR, projector)
        listed = replace(listed, sha256="0" * 64)
    request = make_request(projector=listed, sees=("image",))
    model = plan_model(HubClient(hub.url), request)
    assert model.projector is None
    (note,) = model.notes
    assert note.startswith("without its projector, so it does not see: ")
    assert model.header is not None
