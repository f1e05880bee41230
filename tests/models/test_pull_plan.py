"""What a pull would do, and what is refused before it does."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.errors import AccessDeniedError, ChecksumError, StorageError
from localspec.models import model_lookup, pull_plan
from localspec.models.catalog import CatalogModel
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import download_file
from localspec.models.local_files import inventory
from localspec.models.model_lookup import ModelRequest
from tests.support.fake_hub import API, BODY, FakeHub, Fault
from tests.support.zoo import Zoo

REPO = "org/Tiny-GGUF"
FILE = "Tiny-Q8_0.gguf"


@pytest.fixture
def hub(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with FakeHub() as hub:
        hub.add(REPO, FILE, zoo["target"].read_bytes())
        hub.add(REPO, "Draft-Q4_K_M.gguf", zoo["cousin"].read_bytes())
        yield hub


def model(**known: object) -> ModelRequest:
    entry = replace(CatalogModel("tiny", "Tiny", REPO, FILE), **known)
    return ModelRequest("tiny", model_lookup.from_catalog(entry))


def test_one_listing_and_one_header_a_model(hub: FakeHub) -> None:
    pair = ModelRequest(
        "p", model().target, model_lookup.resolve(f"{REPO}:Q4_K_M").target
    )
    found = pull_plan.build(HubClient(hub.url), [pair, model()])
    assert [item.file for item in found.models] == [FILE, "Draft-Q4_K_M.gguf"]
    assert found.missing_bytes == found.size > 0
    (match,) = found.pairs
    assert match.compatibility.is_compatible
    assert len([seen for seen in hub.requests if seen.kind == API]) == 1
    assert len([seen for seen in hub.requests if seen.kind == BODY]) == 2


@pytest.mark.parametrize("spelling", ["ORG/tiny-gguf", "former/Name-GGUF"])
def test_another_spelling_or_a_former_name_is_the_same_model(
    hub: FakeHub, spelling: str
) -> None:
    hub.names["former/Name-GGUF"] = REPO
    client = HubClient(hub.url)
    (item,) = pull_plan.build(client, [model()]).models
    path = download_file(client, item.files[0].job)
    request = model_lookup.resolve(f"{spelling}:Q8_0")
    (again,) = pull_plan.build(client, [request]).models
    assert again.repo == REPO
    assert again.path == path
    assert again.missing_bytes == 0
    is_case = spelling.lower() == REPO.lower()
    assert request.target.find_path() == (path if is_case else None), "without the hub"
    assert [m.repo for m in inventory.list_models()] == [REPO]


@pytest.mark.parametrize("status", [401, 403])
def test_an_expired_token_keeps_nobody_from_a_model_that_is_here(
    hub: FakeHub, status: int
) -> None:
    client = HubClient(hub.url)
    path = download_file(
        client, pull_plan.build(client, [model()]).models[0].files[0].job
    )
    hub.always[API] = Fault("status", status=status)
    (item,) = pull_plan.build(client, [model()]).models
    assert (item.path, item.missing_bytes) == (path, 0)
    assert str(status) in item.notes[0]
    with pytest.raises(AccessDeniedError, match=str(status)):
        pull_plan.build(client, [model_lookup.resolve(f"{REPO}:Q4_K_M")])


def test_a_file_that_is_not_listed_is_not_planned_as_present(
    hub: FakeHub, tmp_path: Path
) -> None:
    """Property: whatever a link leads to, `list` and `pull` agree."""
    client = HubClient(hub.url)
    request = model_lookup.resolve(f"{REPO}:Q8_0")
    (item,) = pull_plan.build(client, [request]).models
    path = download_file(client, item.files[0].job)
    outside = tmp_path / "outside.gguf"
    shutil.copy(path, outside)
    path.unlink()
    path.symlink_to(outside)
    path.parents[2].joinpath("blobs", item.files[0].job.file.digest).unlink()
    (again,) = pull_plan.build(client, [request]).models
    assert inventory.list_models() == ()
    assert again.path is None
    assert request.target.find_path() is None


def test_too_little_room_is_said_first(hub: FakeHub) -> None:
    found = pull_plan.build(HubClient(hub.url), [model()])
    found.check()
    with pytest.raises(StorageError, match="MB free"):
        replace(found, free_bytes=100).check()


def test_another_file_than_the_catalogue_is_sure_of(hub: FakeHub) -> None:
    with pytest.raises(ChecksumError, match="differs from the catalogue"):
        pull_plan.build(HubClient(hub.url), [model(sha256="0" * 64)])
    (item,) = pull_plan.build(HubClient(hub.url), [model(bytes=7)]).models
    assert "replaced since" in item.notes[0]


def test_what_came_already_is_counted(hub: FakeHub, tmp_path: Path) -> None:
    digest = hub.repos[REPO][FILE].sha256
    part = (
        tmp_path
        / "hub"
        / "models--org--Tiny-GGUF"
        / "blobs"
        / f"{digest}.localspec.part"
    )
    part.parent.mkdir(parents=True)
    part.write_bytes(hub.repos[REPO][FILE].data[:1000])
    found = pull_plan.build(HubClient(hub.url), [model()])
    assert found.missing_bytes == found.size - 1000
