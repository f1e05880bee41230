"""models.yaml is read, overridden by the user's own file, and refused if damaged."""

import itertools
import os
from pathlib import Path

import pytest

from localspec.errors import NotFoundError, UsageError
from localspec.models import catalog, reference
from localspec.models.catalog import CatalogModel, CatalogPair, PairSettings
from localspec.models.catalog_entries import CatalogProjector
from localspec.models.gguf import writer
from localspec.models.reference import is_model, is_safe_gguf_path
from tests.support import families, synthetic_header

MODEL = """
  - id: small
    title: A model
    repo: user/name
    file: a.gguf
    bytes: 1000
"""
SHAPED = f"""models:{MODEL}    architecture: llama
    shape: {{layers: 4, embd: 64, ff: 8, heads: 4, vocab: 100, tied: true, source: me}}
"""
BOTH = f"models:{MODEL}\npairs:\n  - target: small\n"


def written(folder: Path, text: str, name: str = "models.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Where a person's own file is looked for."""
    return tmp_path / "models.yaml"


def test_the_shipped_catalogue_is_consistent(own: Path) -> None:
    known = catalog.load()
    assert len(known.models) > 80
    assert len(known.pairs) > 75
    for model in known.models.values():
        if model.path:  # bundled
            continue
        assert model.repo and reference.is_repo_id(model.repo)
        assert model.type or is_safe_gguf_path(model.file)
        assert model.kind != "model" or model.type or is_model(model.file)
        assert model.size or "not known" in model.note
    files = [(model.repo, model.file) for model in known.models.values()]
    assert len(files) == len(set(files))
    for pair in known.pairs.values():
        if pair.draft and pair.draft.family and pair.target.family:
            assert pair.draft.family == pair.target.family, pair.id
        is_here = pair.target.path or pair.target.package
        assert pair.status != "verified" or is_here, "we have run no other yet"
    drafted = {pair.target.id for pair in known.pairs.values()}
    for model in known.models.values():
        assert not model.use or model.id in drafted, f"{model.id} has a use and no pair"


def test_an_entry_has_its_values_and_a_pair_its_target_s(tmp_path: Path) -> None:
    text = f"""
models:{MODEL}    active: 3300000000
    context: 4096
    use: [chat, code]
  - {{id: tiny, title: Tiny, repo: a/b, file: b/c-Q8_0.gguf, about: 378.3 MiB, kind: mtp}}
pairs:
  - target: small
    draft: tiny
    status: reported
    source: somebody
    settings: {{draft_max: 8, temperature: 0.7}}
"""
    known = catalog.load(written(tmp_path, text))
    small, tiny = known.models.values()
    assert small.active == 3_300_000_000
    assert small.context == 4096
    assert small.use == ("chat", "code")
    assert tiny.size == int(378.35 * 2**20), "a rounded size is at most this"
    pair, lookup = known.pairs.values()
    assert pair.id == "small+tiny"
    assert pair.title == "A model with Tiny"
    assert lookup.id == "small+lookup"
    assert lookup.draft_kind == "lookup", "every target has one"
    assert pair.draft_kind == "mtp"
    assert pair.use == ("chat", "code")
    assert pair.status == "reported"
    assert pair.settings == PairSettings(draft_max=8, temperature=0.7)


def test_an_entry_names_the_file_with_which_it_sees(tmp_path: Path) -> None:
    text = f"""
models:{MODEL}    files: {{Q8_0: 2000}}
    projector: {{file: mmproj-F16.gguf, bytes: 900}}
    sees: image
  - id: large
    title: Another
    repo: user/large
    file: b.gguf
    projector: {{repo: a/b, file: x/b-mmproj.gguf}}
    hears: true
"""
    small, large = catalog.load(written(tmp_path, text)).models.values()
    assert small.projector == CatalogProjector("user/name", "mmproj-F16.gguf", 900)
    assert small.sees == ("image",)
    assert not small.hears
    assert small.files[0].projector == small.projector, "it fits all quantisations"
    assert large.projector == CatalogProjector("a/b", "x/b-mmproj.gguf")
    assert large.sees == ()
    assert large.hears


def test_an_entry_has_the_shape_of_its_model(tmp_path: Path) -> None:
    text = SHAPED.replace("tied: true", "tied: true, full_layers: [1, 3]")
    model = catalog.load(
        written(tmp_path, text.replace("a.gguf", "a-Q4_K_M.gguf"))
    ).models["small"]
    numbers = "llama layers=4 embd=64 ff=8 heads=4 vocab=100 tied=1 full_layers=1,3"
    shape = families.make_shape(numbers)
    assert model.shape == shape
    assert model.shape_source == "me"
    assert model.quantization == "Q4_K_M"
    text = BOTH.replace("A model", "no").replace("user/name", "1.10/12")
    known = catalog.load(written(tmp_path, text))
    plain = known.models["small"]
    pair = known.pairs["small+lookup"]
    assert plain.shape is None
    assert plain.shape_source == ""
    assert plain.quantization == ""
    assert plain.title == "no"
    assert plain.repo == "1.10/12", "no booleans, times and floats of YAML"
    assert pair.draft_kind == "lookup"
    assert pair.draft is None
    assert pair.spec == "auto"
    assert pair.size == 1000


def test_the_user_s_file_adds_replaces_and_hides_entries(own: Path) -> None:
    written(
        own.parent,
        f"""
models:{MODEL}  - {{id: qwen3-8b, title: Mine, repo: a/b, file: c.gguf}}
  - {{id: phi-4, hide: true}}
pairs:
  - {{target: small, draft: qwen3-0.6b}}
  - {{id: demo, hide: true}}
""",
    )
    known = catalog.load()
    assert known.models["small"].title == "A model"
    mine = known.models["qwen3-8b"]
    assert mine.title == "Mine"
    assert mine.sha256 is None
    assert mine.bytes is None, "nothing of ours is kept"
    assert known.pairs["qwen3-8b+qwen3-0.6b"].target is mine
    assert "phi-4" not in known.models
    assert "phi-4+lookup" not in known.pairs
    assert "demo" not in known.pairs
    assert "small+qwen3-0.6b" in known.pairs


def test_a_file_that_has_changed_is_read_again(own: Path) -> None:
    assert "small" not in catalog.load().models
    written(own.parent, BOTH)
    assert "small" in catalog.load().models
    before = catalog.load()
    assert catalog.load() is before
    os.utime(own, ns=(1, 1))
    assert catalog.load() is not before


SEEING = f"models:{MODEL}    sees: image\n    projector: {{file: mmproj.gguf}}\n"
DAMAGE = [
    (SEEING.replace("sees: image", "tier: old"), "the model needs `sees` or `hears`"),
    (SEEING.replace("sees: image", "sees: films"), "model small: sees"),
    (
        SEEING.replace("mmproj.gguf", "b.gguf"),
        "model small: projector: file: 'b.gguf' is not named as a projector",
    ),
    (
        SEEING.replace("mmproj.gguf", "../mmproj.gguf"),
        "model small: projector: file: '../mmproj.gguf' is not a safe",
    ),
    (
        SEEING.replace("mmproj.gguf", "mmproj.gguf, repo: https://evil/x"),
        "model small: projector: repo: 'https://evil/x' is not a repository",
    ),
    (
        SEEING.replace("mmproj.gguf", "mmproj.gguf, about: 1 GiB"),
        "model small: projector: Object contains unknown field `about`",
    ),
    ("[]", "it must be a table"),
    ("schema: 2", "its schema is newer"),
    ("colours: []", "unknown section 'colours'"),
    (BOTH.replace("A model", ""), "model small: title: Expected `str` matching regex"),
    (
        BOTH.replace("    title: A model\n", ""),
        "model small: Object missing required field `title`",
    ),
    (
        BOTH.replace("title", "colour"),
        "model small: Object contains unknown field `colour`",
    ),
    (
        BOTH.replace("1000", "1k"),
        "model small: bytes: Expected `int | null`, got `str`: '1k'",
    ),
    (
        BOTH.replace("1000", "9" * 5000),
        "model small: bytes: Integer value out of range: '999",
    ),
    (
        BOTH.replace("a.gguf", "../a.gguf"),
        "model small: file: '../a.gguf' is not a safe",
    ),
    (
        BOTH.replace("a.gguf", '"a\\e[31m.gguf"'),
        ": it contains control characters",
    ),
    (
        BOTH.replace("user/name", "https://evil/x"),
        "model small: repo: 'https://evil/x' is not a repository",
    ),
    (
        BOTH.replace("id: small", "id: ../x"),
        "entry 1 of models: id: Expected `str` matching regex",
    ),
    (
        BOTH + "    env: {A: b}\n",
        "pair small+lookup: Object contains unknown field `env`",
    ),
    (
        BOTH + "    settings: {draft_max: 1000}\n",
        "settings.draft_max: Expected `int` <= 64: '1000'",
    ),
    (BOTH + "    spec: magic\n", "pair small+lookup: spec: Expected one of"),
    (
        BOTH + "    draft: other\n",
        "pair small+other: draft: there is no model other",
    ),
    (BOTH + "    status: reported\n", "pair small+lookup: source: it is missing"),
    (
        BOTH + "  - target: small\n",
        "entry 2 of pairs: the id small+lookup is duplicated",
    ),
    (BOTH + "    id: small\n", "pair small: its id is that of a model"),
    (f"models:{MODEL}    id: other\n", "line 7: 'id' is duplicated"),
    (f"models:{MODEL}    revision: {'a' * 40}\n", "model small: revision needs sha256"),
    (f"models:{MODEL}    files: [Q8_0]\n", "files: Expected `object`, got `array`"),
    (
        f"models:{MODEL}    files: {{q8: 1.0 GiB}}\n",
        "^(UD-)?[A-Z0-9][A-Z0-9_]{1,15}$': 'q8'",
    ),
    (
        f"models:{MODEL}    files: {{Q8_0: {{revision: {'a' * 40}}}}}\n",
        "files.Q8_0: revision needs sha256",
    ),
    (f"models:{MODEL}    sampling: nosuch\n", "sampling: there is no entry 'nosuch'"),
    (
        "sampling:\n  - {id: a, source: b, plain: {top_p: 2}}\n",
        "sampling a: plain.top_p: Expected `float` <= 1.0: '2'",
    ),
    (
        f"models:{MODEL}    sha256: {'a' * 63}\n",
        "model small: sha256: Expected `str` matching regex '^[0-9a-f]{64}$': 'aaa",
    ),
    (
        f"models:{MODEL}    about: 1.0 GiB or so\n",
        "about: '1.0 GiB or so' is not a rounded size like",
    ),
    (
        SHAPED.replace("tied: true", "architecture: phi3"),
        "model small: shape.architecture: Expected one of",
    ),
    (f"models:{MODEL}    {'a' * 900}: x\n", "unknown field `aaa"),
    (
        f"models:{MODEL}    about: 1.0 GiB\n",
        "model small: bytes and about exclude each other",
    ),
    (
        "models: [{id: a, title: t, bundled: ../../x.gguf}]",
        "model a: bundled: '../../x.gguf' is not a plain file name",
    ),
    (
        SHAPED.replace("layers: 4", "layers: 0"),
        "model small: shape.layers: Expected `int` >= 1: '0'",
    ),
    (
        SHAPED.replace("heads: 4", "heads: 5"),
        "model small: shape: the heads do not divide",
    ),
    (SHAPED.replace("ff: 8, ", ""), "shape: llama needs ff"),
    (SHAPED.replace("tied: true", "full_layers: [2, 1]"), "not in ascending order"),
    (SHAPED.replace("tied: true", "pattern: MM"), "pattern is not one of M * E -"),
    (
        SHAPED.replace("llama", "clip"),
        "shape: the architecture clip is not supported",
    ),
    ("a: &a [x, x]\npairs: [*a, *a]", "aliases are not allowed"),
    ("models: " + "[" * 20_000, "nest"),
    ("models: " + "{a: " * 30_000, "nest"),
    ("schema: 1\n---\nschema: 1", "line 2: "),
    ("a: \x1b[31m", "control characters are not allowed"),
    (
        "models: !!python/object/apply:os.system [id]",
        "entry 1 of models: it must be a table",
    ),
    ("models:\n" + "  - {id: a}\n" * 6000, "models has more than 5000 entries"),
]


@pytest.mark.parametrize(("text", "reason"), DAMAGE, ids=itertools.count())
def test_a_damaged_catalogue_is_an_error_of_one_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=r"models\.yaml is damaged: ") as failure:
        catalog.load(written(tmp_path, text))
    assert reason in failure.value.message
    assert "\n" not in failure.value.message
    assert "\x1b" not in failure.value.message
    assert len(failure.value.message) < 500


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    with pytest.raises(UsageError, match="cannot be read"):
        catalog.load(path)
    path.write_bytes(b"pairs: \xff\xfe")
    with pytest.raises(UsageError, match="is damaged"):
        catalog.load(path)
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(UsageError, match="too large"):
        catalog.load(path)


def test_an_entry_is_found_by_its_id_or_by_a_part_that_only_one_has(own: Path) -> None:
    known = catalog.load()
    found = catalog.find(known, "Qwen3-8B")
    assert isinstance(found, CatalogModel)
    assert found.id == "qwen3-8b", "an id, though others begin with it"
    assert isinstance(catalog.find(known, "demo"), CatalogPair)
    assert catalog.find(known, "coder-32b").id == "qwen2.5-coder-32b"
    with pytest.raises(NotFoundError, match="matches several") as failure:
        catalog.find(known, "qwen3")
    assert "qwen3-8b" in failure.value.hint


QUANTISED = (
    MODEL
    + """    files:
      Q8_0: 2.0 GiB
      UD-Q3_K_XL: {bytes: 600, sha256: SHA, revision: COMMIT, repo: other/name}
""".replace("SHA", "0a" * 32).replace("COMMIT", "1b" * 20)
)


def test_a_model_has_an_entry_for_each_quantisation(tmp_path: Path) -> None:
    known = catalog.load(
        written(tmp_path, f"models:{QUANTISED}pairs:\n  - target: small\n")
    )
    model = known.models["small"]
    (pair,) = catalog.pairs_for(known, model)
    large, other = model.files
    assert large.id == "small:Q8_0"
    assert large.title == "A model"
    assert large.repo == "user/name"
    assert large.bytes is None
    assert large.sha256 is None, "those of the first file"
    assert large.size == int(2.05 * 2**30)
    assert other.repo == "other/name"
    assert other.size == 600
    assert other.revision == "1b" * 20
    assert model.find_type("q8_0") is large
    assert model.find_type("Q3_K_XL") is other
    assert model.find_type("Q2_K") is None
    assert large.is_file("user/name", "b-Q8_0.gguf")
    assert not large.is_file("user/name", "a.gguf")
    assert not large.is_file("other/name", "b-Q8_0.gguf")
    variant = pair.with_target(large)
    assert variant.id == "small+lookup:Q8_0"
    assert variant.title == f"{pair.title}, Q8_0"
    assert pair.with_target(model) is pair
    assert catalog.own_id(variant.id) == pair.id
    assert catalog.pairs_for(known, large) == (pair,)


OWN_MIXTURE = {"gemma-4-26b-a4b", "glm-4.7-flash", "ornith-1.5-9b"}
"""Models whose publisher chose the types of tensors himself.

So did all families with `qwen3.`.
"""


UNREAD = {
    "lfm2.5-2.6b", "lfm2-24b-a2b", "granite-4.0-h-tiny", "granite-4.0-h-small",
    "granite-4.0-h-micro",
}  # fmt: skip
"""Which of their layers attend is unknown: spread evenly."""


def test_shapes_are_proved_by_published_bytes_and_parameters(own: Path) -> None:
    """What a drawn header lacks is the vocabulary."""
    for model in catalog.load().models.values():
        shape = model.shape
        id_ = model.id
        if (
            shape is None
            or model.architecture not in synthetic_header.DRAWN
            or id_ in UNREAD
        ):
            continue
        is_own = id_ in OWN_MIXTURE or id_.startswith(("qwen3.5-", "qwen3.6-"))
        if model.bytes and not is_own and "UD-" not in model.file:
            drawn = synthetic_header.build(shape, model.quantization)
            left = model.bytes - writer.data_size(drawn)
            assert 0.2e6 < left < 20e6
            assert left / model.bytes < 0.03, id_
        if model.parameters and model.parameters % 1000:
            drawn = synthetic_header.build(shape, "F16")
            assert drawn.parameters == pytest.approx(model.parameters, rel=1e-4), id_
