"""models/model_lookup.py: what is installed, each model once."""

from pathlib import Path

import pytest

from localspec import paths
from localspec.models import model_lookup
from localspec.models.local_files import inventory
from localspec.models.local_files.local_model import LocalModel, ModelOrigin

CATALOGUE = """\
schema: 1
models:
  - {id: tiny, title: Tiny, repo: a/Tiny-GGUF, file: Tiny.Q4_K_M.gguf, bytes: 9, use: [chat]}
  - {id: tiny-eagle3, title: Head of Tiny, repo: a/H-GGUF, file: H.gguf, bytes: 1, kind: eagle3}
  - {id: small, title: Small, repo: a/Small-GGUF, file: Small-Q8_0.gguf, bytes: 9, use: [chat]}
pairs:
  - {target: tiny, draft: tiny-eagle3}
"""


def local(file: str, repo: str | None, origin: ModelOrigin = "hub") -> LocalModel:
    return LocalModel(
        path=Path("/models") / origin / file,
        size=9,
        repo=repo,
        file=file,
        revision=None,
        sha256=None,
        verified=True,
        origin=origin,
        removable=False,
    )


TINY = local("Tiny.Q4_K_M.gguf", "a/Tiny-GGUF", "package")
HEAD = local("H.gguf", "a/H-GGUF")
COPY = local("Tiny-Q8_0.gguf", None, "converted")
OTHER_COPY = local("Tiny-Q4_1.gguf", None, "converted")
SMALL = local("Small-Q8_0.gguf", "a/Small-GGUF")
LONE_COPY = local("elsewhere-Q8_0.gguf", None, "converted")


@pytest.fixture
def _catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shelf.yaml"
    file.write_text(CATALOGUE)
    monkeypatch.setattr(paths, "catalog_file", lambda: file)


def list_names(monkeypatch: pytest.MonkeyPatch, *models: LocalModel) -> list[str]:
    monkeypatch.setattr(inventory, "list_models", lambda: models)
    return [name for name, _ in model_lookup.list_installed()]


@pytest.mark.usefixtures("_catalogue")
def test_a_model_its_head_and_its_copies_are_one_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = list_names(monkeypatch, TINY, HEAD, COPY, OTHER_COPY)
    assert names == ["tiny+eagle3"]


@pytest.mark.usefixtures("_catalogue")
def test_a_model_without_its_head_is_called_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list_names(monkeypatch, TINY, COPY) == ["tiny"]


@pytest.mark.usefixtures("_catalogue")
def test_a_copy_whose_model_is_gone_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_names(monkeypatch, SMALL, LONE_COPY) == ["small", "elsewhere-Q8_0"]


@pytest.mark.usefixtures("_catalogue")
@pytest.mark.parametrize("opened_by", ["tiny", "tiny+lookup", "tiny+tiny-eagle3"])
def test_an_open_pair_is_found_in_the_list_however_it_was_named(
    opened_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list_names(monkeypatch, TINY, HEAD, COPY)
    assert model_lookup.find_listed(opened_by, TINY.path) in names


@pytest.mark.usefixtures("_catalogue")
def test_every_name_of_the_list_opens_what_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets = []
    for name in list_names(monkeypatch, TINY, HEAD, SMALL):
        target = model_lookup.resolve(name).target.catalog_model
        assert target is not None
        targets.append(target.id)
    assert targets == ["tiny", "small"]
