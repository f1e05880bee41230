"""Projectors are found beside their models, and judged by their headers."""

import itertools
import os
from pathlib import Path

import pytest

from localspec.errors import ModelFileError
from localspec.models import catalog, projectors
from localspec.models.gguf import reader
from localspec.models.local_files import inventory
from localspec.models.projectors import Senses
from localspec.models.reference import RepoFile
from tests.support import ghost_projectors, tinygguf

COMMIT = "a" * 40
LATER = "b" * 40
WIDTH = 64  # Of the tiny models.


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home of their own; nothing of this computer is looked at."""
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def put_model(path: Path) -> Path:
    """A tiny llama."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return tinygguf.llama(0).write(path)


def put_projector(
    path: Path, type_: str = "F16", kind: str = "idefics3", width: int = WIDTH
) -> Path:
    return ghost_projectors.tiny(kind, width).write(path, type_)


def cached(home: Path, repo: str, name: str, commit: str = COMMIT) -> Path:
    folder = home / "hub" / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return folder / "snapshots" / commit / name


@pytest.mark.parametrize(
    "name", ["mmproj-F16.gguf", "m-mmproj.gguf", "m.mmproj-f16.gguf"]
)
def test_a_projector_in_the_models_folder_is_found(home: Path, name: str) -> None:
    model = put_model(home / "m-Q8_0.gguf")
    assert projectors.find_projector(model) is None
    projector = put_projector(home / name)
    assert projectors.find_projector(model) == projector


def test_the_better_type_wins_in_any_order_of_names(home: Path) -> None:
    ranked = ["F16", "BF16", "Q8_0", "F32"]
    for n, names in enumerate(itertools.permutations("abcd")):
        folder = home / str(n)
        model = put_model(folder / "m-Q8_0.gguf")
        files = {
            type_: put_projector(folder / f"mmproj-{name}.gguf", type_)
            for name, type_ in zip(names, ranked, strict=True)
        }
        for type_ in ranked:
            assert projectors.find_projector(model) == files[type_], names
            files[type_].unlink()
        assert projectors.find_projector(model) is None


def test_one_named_after_the_model_wins_over_a_better_type(home: Path) -> None:
    model = put_model(home / "Tiny-2B-Q4_0.gguf")
    put_projector(home / "mmproj-F16.gguf", "F16")
    own = put_projector(home / "mmproj-Tiny-2B-Q8_0.gguf", "Q8_0")
    assert projectors.find_projector(model) == own


@pytest.mark.parametrize(
    ("kind", "width"), [("idefics3", 2 * WIDTH), ("gemma3", WIDTH), ("pixtral", 0)]
)
def test_a_projector_of_another_width_or_kind_is_none(
    home: Path, kind: str, width: int
) -> None:
    """One of another kind would load, and the answers would be nonsense."""
    model = put_model(home / "m.gguf")
    put_projector(home / "mmproj-F16.gguf", kind=kind, width=width)
    assert projectors.find_projector(model) is None


def test_what_is_no_projector_keeps_no_model_from_its_own(home: Path) -> None:
    model = put_model(home / "m.gguf")
    (home / "mmproj-a.gguf").write_bytes(b"GGUF and then nothing")
    (home / "mmproj-b.gguf").write_bytes(b"")
    (home / "mmproj-c.gguf").mkdir()
    put_model(home / "mmproj-d.gguf")
    cut = put_projector(home / "mmproj-e.gguf")
    os.truncate(cut, cut.stat().st_size - 2000)
    assert projectors.find_projector(model) is None
    own = put_projector(home / "mmproj-f.gguf")
    assert projectors.find_projector(model) == own


def test_in_the_hubs_cache_it_may_be_above_and_of_a_later_commit(home: Path) -> None:
    repo = "user/name-GGUF"
    model = put_model(cached(home, repo, "Q8_0/m-Q8_0.gguf"))
    other = put_projector(cached(home, "user/other-GGUF", "mmproj-F16.gguf"))
    assert projectors.find_projector(model) is None, other
    later = put_projector(cached(home, repo, "mmproj-F16.gguf", LATER))
    assert projectors.find_projector(model) == later
    own = put_projector(cached(home, repo, "mmproj-F16.gguf"))
    assert projectors.find_projector(model) == own


@pytest.mark.parametrize("place", ["hub", "lmstudio", "models"])
def test_the_catalogue_names_one_of_another_repository(
    home: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog_file = home / "config" / "models.yaml"
    catalog_file.parent.mkdir()
    catalog_file.write_text(
        """models:
  - {id: m, title: M, repo: user/m-GGUF, file: m.gguf, sees: image,
     projector: {repo: user/other-GGUF, file: mmproj-F16.gguf}}
"""
    )
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(catalog_file.with_name("config.toml")))
    tops = {"lmstudio": home / ".lmstudio" / "models", "models": home / "models"}
    if place == "hub":
        model = put_model(cached(home, "user/m-GGUF", "m.gguf"))
    else:
        model = put_model(tops[place] / "user" / "m-GGUF" / "m.gguf")
    assert projectors.find_projector(model) is None
    projector = put_projector(cached(home, "user/other-GGUF", "mmproj-F16.gguf"))
    assert projectors.find_projector(model) == projector


def test_each_model_has_its_projector_in_a_list(home: Path) -> None:
    model = put_model(home / "models" / "a" / "m.gguf")
    put_model(home / "models" / "b" / "n.gguf")
    projector = put_projector(home / "models" / "a" / "mmproj.gguf")
    found = projectors.map_projectors(inventory.list_models())
    assert found == {model: projector}


def test_senses_are_those_of_the_header(home: Path) -> None:
    seeing = ghost_projectors.tiny().write(home / "sees.gguf")
    both = ghost_projectors.tiny(hears=True).write(home / "both.gguf")
    assert projectors.read_senses(reader.read(seeing)) == Senses(sees=True)
    assert projectors.read_senses(reader.read(both)).word == "sees, hears"
    assert Senses().word == ""


def test_a_projector_is_refused_as_a_model_with_the_way_to_use_it(home: Path) -> None:
    path = put_projector(home / "mmproj-F16.gguf")
    with pytest.raises(ModelFileError) as caught:
        reader.check_loadable(path)
    assert "image part" in caught.value.message
    assert "--image-model mmproj-F16.gguf" in caught.value.hint


def test_a_repositorys_projector_is_chosen_by_folder_and_type() -> None:
    def chosen(*paths: str, model: str = "m-Q4_K_M.gguf") -> str | None:
        files = [RepoFile(path, 1) for path in paths]
        found = projectors.choose_on_hub(files, model)
        return found.path if found else None

    assert chosen("m-Q4_K_M.gguf", "imatrix.gguf") is None
    assert chosen("mmproj-F32.gguf", "mmproj-Q8_0.gguf") == "mmproj-Q8_0.gguf"
    assert (
        chosen("mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf")
        == "mmproj-F16.gguf"
    )
    assert chosen("other/mmproj-F16.gguf", "../mmproj-F16.gguf") is None
    assert (
        chosen("mmproj-F16.gguf", "a/mmproj-F32.gguf", model="a/m-00001-of-00002.gguf")
        == "a/mmproj-F32.gguf"
    )


def test_the_catalogues_facts_about_senses_are_whole() -> None:
    """A model with a projector sees; a size and a hash are of a file with a name."""
    known = catalog.load().models.values()
    for model in known:
        projector = model.projector
        if projector is None:
            continue
        assert model.kind == "model"
        assert model.sees or model.hears, model.id
        assert projector.sha256 is None or projector.bytes, model.id
    current = [model for model in known if model.tier == "current" and model.sees]
    assert len(current) >= 13
    files = {
        (model.projector.repo, model.projector.file)
        for model in known
        if model.projector
    }
    assert len(files) == sum(model.projector is not None for model in known)
