"""models.yaml: what it holds, and what a damaged one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import paths
from localspec.errors import UsageError
from localspec.models import catalog

ENTRY = """
  - id: small
    title: a pair
    target: {bundled: a.gguf}
    draft: {bundled: b.gguf}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_our_own_catalogue_has_the_demo() -> None:
    pair = catalog.load()["demo"]
    assert pair.target.is_file()
    assert pair.draft is not None
    assert pair.draft.is_file()
    assert pair.spec == "model"
    assert pair.why
    assert pair.licence != "unknown"


def test_an_entry(tmp_path: Path) -> None:
    pair = catalog.load(written(tmp_path, f"pairs:{ENTRY}    use: code\n    spec: lookup\n"))[
        "small"
    ]
    assert (pair.id, pair.title, pair.use, pair.spec) == ("small", "a pair", "code", "lookup")
    assert pair.target == paths.data() / "demo" / "a.gguf"
    assert pair.draft == paths.data() / "demo" / "b.gguf"


def test_a_draft_may_be_absent_and_the_rest_has_defaults(tmp_path: Path) -> None:
    text = "pairs:\n  - {id: one, title: t, target: {bundled: a.gguf}}\n"
    pair = catalog.load(written(tmp_path, text))["one"]
    assert (pair.draft, pair.use, pair.spec, pair.why) == (None, "chat", "auto", "")


def test_the_order_of_the_file_is_kept(tmp_path: Path) -> None:
    text = "pairs:" + "".join(ENTRY.replace("small", name) for name in ("z", "a", "m"))
    assert list(catalog.load(written(tmp_path, text))) == ["z", "a", "m"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pairs",
        "[]",
        "pairs: 3",
        "pairs: [3]",
        "pairs: [{}]",
        "pairs:" + ENTRY.replace("title: a pair", ""),
        "pairs:" + ENTRY + "    colour: red\n",
        "pairs:" + ENTRY.replace("a.gguf", "../../etc/passwd"),
        "pairs:" + ENTRY.replace("a.gguf", "/etc/passwd"),
        "pairs:" + ENTRY.replace("{bundled: a.gguf}", "a.gguf"),
        "a: &a [x, x]\npairs: [*a, *a]",
        "pairs: !!python/object/apply:os.system [id]",
        "pairs: [" * 3000,
        "pairs:\n\t- broken",
        "\x00",
    ],
)
def test_a_damaged_catalogue_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"is damaged: ") as failure:
        catalog.load(written(tmp_path, text))
    assert "\n" not in failure.value.message


def test_a_catalogue_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_bytes(b"pairs: \xff\xfe")
    with pytest.raises(UsageError, match="is damaged"):
        catalog.load(path)


def test_a_catalogue_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UsageError, match="too large"):
        catalog.load(path)


def test_a_catalogue_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        catalog.load(tmp_path / "none.yaml")
