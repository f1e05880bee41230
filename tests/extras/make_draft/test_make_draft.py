"""A copy of a model with some of its layers is the model that has only these."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from msgspec.structs import replace

from localspec.chat.history import ChatHistory
from localspec.errors import UsageError
from localspec.extras import make_draft
from localspec.extras.make_draft import layer_subset
from localspec.models.gguf import reader
from tests.chat.saved_chats import put
from tests.cli.test_main import options_that_take_an_empty_text
from tests.support import tinygguf
from tests.support.run_command import localspec
from tests.support.tinygguf import Model, Shape
from tests.support.zoo import Zoo


def contents(path: Path) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Keys with their types and values; tensors with their types, shapes and bytes."""
    reader = GGUFReader(path)
    keys = {
        name: (field.types, field.contents())
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        tensor.name: (tensor.tensor_type, list(tensor.shape), tensor.data.tobytes())
        for tensor in reader.tensors
    }
    return keys, tensors


def with_layers(model: Model, kept: list[int], **keys: Any) -> Model:
    """The same model, written with these layers only."""
    new_names = {f"blk.{old}.": f"blk.{new}." for new, old in enumerate(kept)}
    tensors = {}
    for name, values in model.tensors.items():
        prefix = ".".join(name.split(".")[:2]) + "."
        if prefix in new_names:
            tensors[new_names[prefix] + name.removeprefix(prefix)] = values
        elif not name.startswith("blk."):
            tensors[name] = values
    return replace(
        model, tensors=tensors, keys={**model.keys, "block_count": len(kept), **keys}
    )


def deep(**more: Any) -> Model:
    return tinygguf.llama(0, shape=Shape(n_layer=6), **more)


def with_arrays() -> Model:
    """Keys with a value for each layer, and one with as many values by chance."""
    model = deep(kind=Kind.Q8_0)
    model.keys["attention.head_count_kv"] = [2] * 6
    model.keys["feed_forward_length"] = [128, 129, 130, 131, 132, 133]
    model.keys["rope.dimension_sections"] = [1, 2, 3, 4, 5, 6]
    model.keys["leading_dense_block_count"] = 3
    return model


CASES: dict[str, tuple[Callable[[], Model], list[int], dict[str, Any]]] = {
    "the first": (deep, [0, 1, 2], {}),
    "without the middle": (lambda: deep(kind=Kind.Q8_0), [0, 1, 4, 5], {}),
    "tied": (lambda: deep(tied=True), [0, 5], {}),
    "arrays": (
        with_arrays,
        [0, 1, 5],
        {
            "attention.head_count_kv": [2] * 3,
            "feed_forward_length": [128, 129, 133],
            "leading_dense_block_count": 2,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_model_that_has_only_these_layers(name: str, tmp_path: Path) -> None:
    make, kept, keys = CASES[name]
    source = make().write(tmp_path / "whole.gguf")
    expected = with_layers(make(), kept, **keys).write(tmp_path / "expected.gguf")
    size = layer_subset.copy_layers(source, tmp_path / "copy.gguf", kept)
    assert contents(tmp_path / "copy.gguf") == contents(expected)
    assert size == (tmp_path / "copy.gguf").stat().st_size
    reader.check_loadable(tmp_path / "copy.gguf")
    assert not list(tmp_path.glob("*.part"))


def test_a_layer_keeps_its_kind_of_attention(zoo: Zoo, tmp_path: Path) -> None:
    """Gemma's sixth layers see the whole text; the file does not say so, only their
    number.
    """
    swa_layers = [True, False]
    copy = tmp_path / "copy.gguf"
    layer_subset.copy_layers(zoo["sliding"], copy, [1], swa_layers)
    pattern = "gemma3.attention.sliding_window_pattern"
    assert reader.read(copy).keys[pattern] == (False,)
    layer_subset.copy_layers(zoo["sliding"], tmp_path / "first.gguf", [0], swa_layers)
    assert reader.read(tmp_path / "first.gguf").keys[pattern] == (True,)


def test_layers_that_predict_are_left_out(zoo: Zoo, tmp_path: Path) -> None:
    before = reader.read(zoo["mimo"])
    n = before.n_layer - before.hparam("nextn_predict_layers")
    assert before.hparam("nextn_predict_layers")
    copy = tmp_path / "copy.gguf"
    layer_subset.copy_layers(zoo["mimo"], copy, [0])
    after = reader.read(copy)
    assert (after.n_layer, after.hparam("nextn_predict_layers")) == (1, 0)
    assert not any("nextn" in name for name in after.tensors_by_name)
    with pytest.raises(UsageError, match=f"no layer {n}"):
        layer_subset.copy_layers(zoo["mimo"], copy, [n])


ASKED = ("-p", "the one", "--raw", "--max-tokens", "12", "--temperature", "0", "--json")


def test_the_command_makes_a_draft_that_drafts(tmp_path: Path) -> None:
    model = tinygguf.nudged(deep(kind=Kind.Q8_0), 1)
    model.keys["early_exit_layer"] = 4
    source = model.write(tmp_path / "whole.gguf")
    draft, middle = tmp_path / "exit.gguf", tmp_path / "middle.gguf"
    done = localspec("make-draft", source, "--out", draft, "--json")
    assert (done.code, done.document["layers"], done.document["of"]) == (
        0,
        [0, 1, 2, 3],
        6,
    )
    assert (
        localspec("make-draft", source, "--keep", "0-1,5, 3", "--out", middle).code == 0
    )
    assert reader.read(middle).n_layer == 4
    plain = localspec(
        "run", source, "--draft", "none", "--spec", "off", *ASKED
    ).document
    for path in (draft, middle):
        got = localspec(
            "run", source, "--draft", path, "--spec", "model", *ASKED
        ).document
        assert got["text"] == plain["text"] and got["speculation"]["drafted"] > 0


def test_what_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    for model, arguments, said in (
        ("target", ("--keep", "0-9"), "no layer 2"),
        ("target", ("--keep", "1-0"), "'1-0' is no layer"),
        ("target", ("--keep", ""), "it is empty"),
        ("target", (), "names no layer to exit from"),
        ("hybrid", ("--keep", "0"), "recurrent state"),
        ("eagle3", ("--keep", "0"), "draft head"),
        ("vocabulary-only", ("--keep", "0"), "no weights"),
    ):
        done = localspec("make-draft", zoo[model], *arguments, "--out", out, "--json")
        assert done.code in (2, 12) and said in json.dumps(
            done.document["error"]["message"]
        )
        assert not out.exists()
    out.write_bytes(b"mine")
    done = localspec("make-draft", zoo["target"], "--keep", "0", "--out", out)
    assert done.code == 2 and out.read_bytes() == b"mine"
    full = localspec(
        "make-draft", zoo["target"], "--keep", "0", "--out", tmp_path / "no" / "x"
    )
    assert full.code == 8


def test_the_command_trims_the_vocabulary(zoo: Zoo, tmp_path: Path) -> None:
    """The most used tokens of a text, then the first ones; the draft is a target for
    nobody.
    """
    text, draft = tmp_path / "text.txt", tmp_path / "trimmed.gguf"
    text.write_text("the one the two the three " * 20)
    arguments = (
        "make-draft",
        zoo["cousin"],
        "--vocab",
        "40",
        "--from",
        text,
        "--out",
        draft,
    )
    done = localspec(*arguments, "--json").document
    assert (done["tokens"], done["coverage"], done["layers"]) == (40, 1.0, [0, 1])
    before, after = (
        reader.read(path).tensors_by_name for path in (zoo["cousin"], draft)
    )
    assert after["output.weight"].n_bytes * before["output.weight"].shape[1] == (
        before["output.weight"].n_bytes * 40
    )
    assert localspec("pair", "check", zoo["target"], draft).code == 0
    said = localspec(
        "run", zoo["target"], "--draft", draft, "--spec", "model", *ASKED
    ).document
    plain = localspec(
        "run", zoo["target"], "--draft", "none", "--spec", "off", *ASKED
    ).document
    assert said["text"] == plain["text"] and said["speculation"]["drafted"] > 0
    none = tmp_path / "none.gguf"
    for refused, words in (
        (("run", draft, *ASKED), "not a complete model"),
        (("convert", draft, "--type", "Q4_0", "--out", none), "is trimmed"),
        (("make-draft", draft, "--vocab", "20", "--out", none), "trimmed already"),
        (
            ("make-draft", zoo["cousin"], "--vocab", "32k", "--out", none),
            "no number of tokens",
        ),
        (
            ("make-draft", zoo["hybrid"], "--vocab", "40", "--out", none),
            "cannot be trimmed",
        ),
        (
            ("make-draft", zoo["cousin"], "--vocab", "40", "--out", none),
            "no kept answer",
        ),
    ):
        failed = localspec(*refused)
        assert failed.code in (2, 12) and words in failed.err + failed.out.decode()
        assert not none.exists()


def test_the_answers_of_kept_chats_are_counted(zoo: Zoo, tmp_path: Path) -> None:
    with closing(ChatHistory.open()) as history:
        put(history, ("what?", "the end"), ("and then?", "in the end"))
    draft = tmp_path / "trimmed.gguf"
    done = localspec(
        "make-draft", zoo["cousin"], "--vocab", "2", "--out", draft, "--json"
    )
    # of `▁` three, of `▁the` two
    assert done.document["coverage"] == pytest.approx(5 / 12)


def test_layers_that_are_tied_to_their_number(tmp_path: Path) -> None:
    model = deep()
    model.keys["attention.shared_kv_layers"] = 2
    source = model.write(tmp_path / "whole.gguf")
    with pytest.raises(UsageError, match="read the KV cache of others"):
        layer_subset.copy_layers(source, tmp_path / "copy.gguf", [0])


def test_an_empty_file_name_is_refused_when_it_is_used() -> None:
    (row,) = make_draft.COMMANDS

    assert options_that_take_an_empty_text(row) == {"out"}
