"""A listed reference opens the file that is listed, and no other file.

Files of one name come from several folders, publishers, commits and programs.
"""

from pathlib import Path

import pytest

from localspec.errors import NotFoundError
from localspec.launch import make_portable_refs
from localspec.models import model_lookup
from localspec.models.local_files import inventory
from tests.models.test_inventory import BODY, SHA, A, B, cached, home, layer, manifest

__all__ = ["home"]


def put(path: Path, mark: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BODY + mark.encode())
    return path


@pytest.fixture
def crowd(home: Path) -> list[Path]:
    """Files with one name by pairs, from every place where models are listed."""
    files = [
        cached(home, "m-Q4_K_M.gguf", A),
        cached(home, "m-Q4_K_M.gguf", B, BODY + b"another commit"),
        cached(home, "sub/m-Q4_K_M.gguf", A, BODY + b"a folder"),
    ]
    lm_studio = home / ".lmstudio" / "models"
    for owner in ("bartowski", "unsloth"):
        files.append(put(lm_studio / owner / "Twin-GGUF" / "Twin-Q8_0.gguf", owner))
    # The same repository and file as in the hub's cache.
    files.append(put(lm_studio / "user" / "name-GGUF" / "m-Q4_K_M.gguf", "copy"))
    for folder in ("x", "y"):
        files.append(put(home / "models" / folder / "same-Q8_0.gguf", folder))
        opened = put(home / "opened" / folder / "lone.gguf", f"opened {folder}")
        inventory.add_opened((opened, None))
        files.append(opened)
    for name in ("a:b", "-p", "demo", "with space", "~tilde", "only", "llama3.2"):
        files.append(put(home / "models" / f"{name}.gguf", name))
    files.append(put(home / "data" / "converted" / "same-Q8_0.gguf", "converted"))
    blob = home / "ollama" / "blobs" / f"sha256-{SHA}"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(BODY)
    files.append(blob)
    manifest(home, "registry.ollama.ai/library/llama3.2/3b", [layer()])
    (home / "models.yaml").write_text(
        "models:\n"
        "  - {id: pinned, title: P, repo: unsloth/Twin-GGUF, file: Twin-Q8_0.gguf, "
        f"revision: {A}, sha256: {SHA}, bytes: 23}}\n"
        "pairs: []\n"
    )
    return files


def test_each_reference_opens_its_own_file(crowd: list[Path]) -> None:
    models = inventory.list_models()
    assert sorted(crowd) == sorted(model.path for model in models)
    references = {}
    for model in models:
        reference = model_lookup.shortest_reference(model, models)
        assert model_lookup.resolve(reference).target.find_path() == model.path
        references[reference] = model.path
    assert len(references) == len(models)


def test_names_that_no_other_file_has_stay_short(crowd: list[Path]) -> None:
    models = inventory.list_models()
    listed = {model_lookup.shortest_reference(model, models) for model in models}
    short = {"only", "with space", "llama3.2:3b", "bartowski/Twin-GGUF:Q8_0"}
    assert short <= listed
    assert f"hf://user/name-GGUF@{B}/m-Q4_K_M.gguf" in listed


@pytest.mark.parametrize("name", ["lone", "same-Q8_0", "twin"])
def test_a_name_of_several_files_is_refused_with_references(
    crowd: list[Path], name: str
) -> None:
    with pytest.raises(NotFoundError, match="matches several") as refused:
        model_lookup.resolve(name)
    shown = refused.value.hint.removeprefix("Choose one: ").removesuffix(".")
    for reference in shown.split(", "):
        assert model_lookup.resolve(reference).target.find_path() in crowd


def test_a_saved_name_means_the_same_file_when_another_one_gets_it(home: Path) -> None:
    first = put(home / "models" / "x" / "my-own.gguf", "1")
    saved, _ = make_portable_refs("my-own", "none")
    by_part, _ = make_portable_refs("my-o", "none")
    put(home / "models" / "y" / "my-own.gguf", "2")

    for reference in (saved, by_part):
        assert model_lookup.resolve(reference).target.find_path() == first


def test_a_name_of_ollama_is_saved_as_it_is(home: Path) -> None:
    blob = home / "ollama" / "blobs" / f"sha256-{SHA}"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(BODY)
    manifest(home, "registry.ollama.ai/library/llama3.2/3b", [layer()])
    assert make_portable_refs("llama3.2:3b", "auto") == ("llama3.2:3b", "auto")
    assert make_portable_refs("llama3", "auto") == ("llama3.2:3b", "auto")


def test_a_file_that_is_not_the_pinned_one_is_not_listed_by_its_id(
    crowd: list[Path],
) -> None:
    """The id means one commit, which LM Studio's copy does not name."""
    models = inventory.list_models()
    listed = {model_lookup.shortest_reference(model, models) for model in models}
    assert model_lookup.resolve("pinned").name == "pinned"
    assert "unsloth/Twin-GGUF:Q8_0" in listed
    assert "pinned" not in listed


def test_a_name_means_the_model_and_not_its_projector(home: Path) -> None:
    folder = home / "models" / "user" / "Sighted-2B-GGUF"
    model = put(folder / "Sighted-2B-Q8_0.gguf", "1")
    put(folder / "mmproj-Sighted-2B-F16.gguf", "2")
    assert model_lookup.resolve("sighted-2b").target.find_path() == model
