"""Heads beside every kind of memory: attention, sliding windows, hybrids; right or wrong by chance.

A model that takes guesses back wrongly says something else, here; a head that does guesses worse,
which only its rows show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import launch
from localspec.engine.llama.head_context import BlockHeadContext
from localspec.errors import IncompatiblePairError, ModelFileError
from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.protocol.wire import SamplingParams
from tests import beside, heads, tapped
from tests.engine.freshness import check_rows
from tests.sessions import loaded, require_same_logits_at_every_width, say
from tests.support.tinygguf import Model

PROMPT = "the one "
MEMORIES = {
    "gpt-oss": "a window in every other layer",
    "lfm2": "hybrid: short convolutions",
    "qwen35": "hybrid: linear attention",
    "qwen3moe": "attention",
    "gemma4-e": "windows, and layers that share keys and values",
    "qwen35moe": "hybrid, with experts",
}
SOME = tuple(MEMORIES)[:3]
"""Those of every run; the others with --long."""
PREDICTING = 3
"""A layer of attention in the hybrids, which the one that predicts looks like."""
KINDS: dict[str, Callable[..., Model]] = {
    "eagle3": heads.eagle3,
    "dspark": lambda **of: heads.block(markov=True, n_embd=of["n_embd"]),
}


LATER = pytest.param("dspark", marks=pytest.mark.long)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tapped")


def params(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in SOME else pytest.mark.long) for name in names]


@pytest.fixture(scope="module", params=params(MEMORIES))
def target(request: pytest.FixtureRequest, folder: Path) -> Iterator[Path]:
    path = tapped.target(request.param).write(folder / f"{request.param}.gguf")
    require_same_logits_at_every_width(path)
    yield path


def head_of(target: Path, kind: str) -> Model:
    """With random weights, from the first layers to the last."""
    facts = reader.read(target)
    model = KINDS[kind](n_embd=facts.n_embd, of=facts.n_embd)
    model.keys["target_layers"] = [1, facts.n_layer // 2, facts.n_layer - 1]
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_taken_back(target: Path, kind: str) -> None:
    """Guesses of a random head, nearly all of them; beside it, other turns and copying."""
    head = head_of(target, kind).write(target.with_suffix(f".{kind}.gguf"))
    with loaded(target, head) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=40)
        for length in (1, 8):
            said = say(session, PROMPT, spec=kind, draft_length=length, max_tokens=40)
            assert said.ids == plain.ids
            assert said.speculation["accepted"] < said.speculation["drafted"] / 2
        longer = PROMPT + said.text[:9] + "other"
        after = say(session, longer, spec="off", max_tokens=20)
        assert say(session, longer, spec="auto", max_tokens=20).ids == after.ids
        seed = SamplingParams(temperature=0.8, seed=1)
        drawn = say(session, PROMPT, spec="off", sampling=seed, max_tokens=30)
        assert say(session, PROMPT, spec=kind, sampling=seed, max_tokens=30).ids == drawn.ids


@pytest.mark.parametrize("kind", ["eagle3", LATER])
def test_what_is_right_is_kept(target: Path, kind: str, folder: Path) -> None:
    """A head that was fitted to what the target says is often right, and then wrong again."""
    with loaded(target) as session:
        said = say(session, PROMPT, spec="off", max_tokens=100).ids
    text = [*beside.ids(target, PROMPT), *said]
    model = head_of(target, kind)
    for name in ("markov_w1", "markov_w2"):  # what they add is not fitted
        if kind == "dspark":
            model.tensors[f"{name}.weight"][:] = 0.0
    head = beside.taught(target, model, text, folder)
    with loaded(target, head) as session:
        again = say(session, PROMPT, spec=kind, draft_length=3, max_tokens=110)
        plain = say(session, PROMPT, spec="off", max_tokens=110)
    assert again.ids == plain.ids
    # None of three, and all: each leaves another memory behind.
    kept = [event.accepted for event in again.rounds if event.drafted == 3]
    assert {0, 3} <= set(kept), kept


@pytest.mark.parametrize("kind", ["eagle3", LATER])
def test_its_rows_are_those_of_a_fresh_head(target: Path, kind: str) -> None:
    path = head_of(target, kind).write(target.with_suffix(f".{kind}.rows.gguf"))
    one, fresh = (beside.opened(target, path) for _ in range(2))
    assert isinstance(one.head, BlockHeadContext) == (kind == "dspark")
    check_rows(one, fresh, PROMPT * 3)


# --- a layer that predicts, in the model's own file or beside it ------------------------------


@pytest.fixture(scope="module", params=params(["qwen35", "qwen35moe"]))
def whole(request: pytest.FixtureRequest, folder: Path) -> Path:
    model = tapped.with_layer(tapped.target(request.param), PREDICTING)
    return model.write(folder / f"whole-{request.param}.gguf")


@pytest.fixture(scope="module")
def apart(whole: Path, folder: Path) -> tuple[Path, Path]:
    """The same, as a model without the layer and the layer's own file beside it."""
    name = reader.read(whole).architecture
    both = tapped.with_layer(tapped.target(name), PREDICTING)
    place = folder / f"apart-{name}"
    place.mkdir()
    target = tapped.target(name).write(place / "model.gguf")
    return target, tapped.layer_alone(both).write(place / "mtp-model.gguf")


def test_a_hybrid_with_a_layer_of_its_own(whole: Path) -> None:
    require_same_logits_at_every_width(whole)
    with loaded(whole, whole) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=40)
        for length in (1, 8):
            said = say(session, PROMPT, spec="mtp", draft_length=length, max_tokens=40)
            assert said.ids == plain.ids
            assert set(said.speculation["by_source"]) == {"mtp"}
    check_rows(beside.opened(whole, whole), beside.opened(whole, whole), PROMPT * 3)


def test_a_layer_in_a_file_of_its_own_is_found_and_used(apart: tuple[Path, Path]) -> None:
    target, layer = apart
    assert launch.resolve_pair(str(target), "auto").draft == layer
    require_same_logits_at_every_width(target)
    with loaded(target, layer) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=40)
        said = say(session, PROMPT, spec="mtp", draft_length=3, max_tokens=40)
    assert said.ids == plain.ids
    assert set(said.speculation["by_source"]) == {"mtp"}


def test_inside_or_beside_it_is_the_same_layer(whole: Path, apart: tuple[Path, Path]) -> None:
    check_rows(beside.opened(*apart), beside.opened(whole, whole), PROMPT * 3)


def test_such_a_layer_is_no_model(apart: tuple[Path, Path]) -> None:
    """llama.cpp would take it for one, and read what is not there."""
    with pytest.raises(ModelFileError, match="is a draft head, not a complete model"):
        launch.resolve_pair(str(apart[1]), "none")


def test_such_a_layer_fits_its_own_model_alone(
    apart: tuple[Path, Path], folder: Path, whole: Path
) -> None:
    target, layer = apart
    name = reader.read(target).architecture
    shorter = tapped.target(name)
    shorter.keys["block_count"] = 3
    shorter.tensors = {
        name: values for name, values in shorter.tensors.items() if not name.startswith("blk.3.")
    }
    others = {
        "layers of 3": shorter.write(folder / f"shorter-{name}.gguf"),
        "layers of lfm2": tapped.target("lfm2").write(folder / "another.gguf"),
    }
    for path in others.values():
        with pytest.raises(IncompatiblePairError):
            launch.resolve_pair(str(path), str(layer))
    assert pair_compatibility.check_compatibility(
        reader.read(whole), reader.read(layer), layer
    ).is_compatible
