"""Every way in which a head and a target do not go together is told before llama.cpp opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from localspec import launch
from localspec.errors import IncompatiblePairError
from localspec.models import header, heads
from tests import heads as made
from tests.tinygguf import Model
from tests.zoo import Zoo


def _changed(change: Callable[[Model], object]) -> Model:
    model = made.eagle3(reduced=range(40, 340, 2))
    change(model)
    return model


def _short_map(model: Model) -> None:
    model.tensors["d2t"] = model.tensors["d2t"][:-1]


def _narrow_map(model: Model) -> None:
    model.tensors["d2t"] = model.tensors["d2t"].astype(np.int32)


def _renamed(model: Model) -> None:
    tokens = model.vocabulary()
    tokens[300] = "▁other"
    model.tokens = tokens


WRONG: dict[str, tuple[Callable[[], Model], str, str]] = {
    "two layers": (lambda: made.eagle3(layers=(1, 2)), "layers", "names 2"),
    "no such layer": (lambda: made.eagle3(layers=(1, 2, 4)), "layers", "layers are 0 to 3"),
    "a negative layer": (lambda: made.eagle3(layers=(-1, 2, 3)), "layers", "reads layer -1"),
    "another width": (lambda: made.eagle3(of=96), "hidden-size", "96 wide; the target's are 64"),
    "no embeddings": (
        lambda: _changed(lambda m: m.keys.update(embedding_length=32)),
        "embeddings",
        "no token_embd of its own, and is 32 wide",
    ),
    "a map too short": (lambda: _changed(_short_map), "reduced-vocabulary", "149 tokens"),
    "a map of int32": (lambda: _changed(_narrow_map), "reduced-vocabulary", "I32 and must be I64"),
    "a map without an output": (
        lambda: _changed(lambda m: m.tensors.pop("output.weight")),
        "reduced-vocabulary",
        "its output has none",
    ),
    "two blocks": (
        lambda: _changed(lambda m: m.keys.update(block_count=2)),
        "head-layers",
        "it has 2",
    ),
    "another vocabulary": (lambda: _changed(_renamed), "token-text", "token 300"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(zoo: Zoo, tmp_path: Path, name: str) -> None:
    make, rule, words = WRONG[name]
    path = make().write(tmp_path / "wrong.gguf")
    verdict = heads.check(heads.of(header.read(zoo["deep"])), header.read(path))
    assert not verdict.compatible
    assert verdict.rule == rule
    assert words in verdict.detail
    with pytest.raises(IncompatiblePairError) as refused:
        launch.choose(str(zoo["deep"]), str(path))
    assert words in refused.value.message
    assert "--draft none" in refused.value.hint


@pytest.mark.parametrize("name", ["eagle3", "eagle3-own", "eagle3-reduced"])
def test_what_fits_is_taken(zoo: Zoo, name: str) -> None:
    assert launch.choose(str(zoo["deep"]), str(zoo[name])).draft == zoo[name]


def test_a_target_without_taps_is_refused(zoo: Zoo) -> None:
    with pytest.raises(IncompatiblePairError, match="does not give of gemma3 models"):
        launch.choose(str(zoo["sliding"]), str(zoo["eagle3"]))


def test_kinds(zoo: Zoo, tmp_path: Path) -> None:
    assert heads.kind(header.read(zoo["deep"])) == "model"
    assert heads.kind(header.read(zoo["eagle3"])) == "eagle3"
    assert heads.layers(header.read(zoo["eagle3"])) == made.TAPS


def test_a_head_that_lies_beside_its_target_is_found(zoo: Zoo, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(zoo["deep"].read_bytes())
    assert launch.choose(str(target), "auto").draft is None
    made.eagle3(of=96).write(tmp_path / "eagle3-another-target.gguf")
    (tmp_path / "eagle3-broken.gguf").write_bytes(b"GGUF")
    assert launch.choose(str(target), "auto").draft is None
    head = made.eagle3().write(tmp_path / "eagle3-target.gguf")
    assert launch.choose(str(target), "auto").draft == head
    assert launch.choose(str(target), "none").draft is None
