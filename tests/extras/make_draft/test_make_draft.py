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
    file = GGUFReader(path)
    keys: dict[str, Any] = {}
    for name, field in file.fields.items():
        if not name.startswith("GGUF."):
            keys[name] = (field.types, field.contents())
    tensors: dict[str, tuple[Any, ...]] = {}
    for tensor in file.tensors:
        shape = list(tensor.shape)
        tensors[tensor.name] = (tensor.tensor_type, shape, tensor.data.tobytes())
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
    new_keys = {**model.keys, "block_count": len(kept), **keys}
    return replace(model, tensors=tensors, keys=new_keys)


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
    copy = tmp_path / "copy.gguf"

    size = layer_subset.copy_layers(source, copy, kept)

    assert contents(copy) == contents(expected)
    assert size == copy.stat().st_size
    reader.check_loadable(copy)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(("layer", "has_window"), [(0, True), (1, False)])
def test_a_layer_keeps_its_kind_of_attention(
    layer: int, has_window: bool, zoo: Zoo, tmp_path: Path
) -> None:
    """Every sixth layer of Gemma sees the whole text. The file does not say so: it
    follows from the layer's number.
    """
    copy = tmp_path / "copy.gguf"

    layer_subset.copy_layers(zoo["sliding"], copy, [layer], swa_layers=[True, False])

    pattern = "gemma3.attention.sliding_window_pattern"
    assert reader.read(copy).keys[pattern] == (has_window,)


def test_layers_that_predict_are_left_out(zoo: Zoo, tmp_path: Path) -> None:
    before = reader.read(zoo["mimo"])
    n = before.n_layer - before.hparam("nextn_predict_layers")
    assert before.hparam("nextn_predict_layers")
    copy = tmp_path / "copy.gguf"

    layer_subset.copy_layers(zoo["mimo"], copy, [0])

    after = reader.read(copy)
    assert after.n_layer == 1
    assert after.hparam("nextn_predict_layers") == 0
    assert not any("nextn" in name for name in after.tensors_by_name)
    with pytest.raises(UsageError, match=f"no layer {n}"):
        layer_subset.copy_layers(zoo["mimo"], copy, [n])


ASKED = ("-p", "the one", "--raw", "--max-tokens", "12", "--temperature", "0", "--json")


def test_the_command_makes_a_draft_that_drafts(tmp_path: Path) -> None:
    model = tinygguf.nudged(deep(kind=Kind.Q8_0), 1)
    model.keys["early_exit_layer"] = 4
    source = model.write(tmp_path / "whole.gguf")
    draft = tmp_path / "exit.gguf"
    middle = tmp_path / "middle.gguf"

    exit_layers = localspec("make-draft", source, *out_to(draft), "--json")
    some_layers = localspec(
        *("make-draft", source), *("--keep", "0-1,5, 3"), *out_to(middle)
    )

    assert exit_layers.code == 0
    assert exit_layers.document["layers"] == [0, 1, 2, 3]
    assert exit_layers.document["of"] == 6
    assert some_layers.code == 0
    assert reader.read(middle).n_layer == 4
    for path in (draft, middle):
        check_that_it_drafts(source, path)


def out_to(file: Path) -> tuple[str, Path]:
    return "--out", file


def check_that_it_drafts(target: Path, draft: Path) -> None:
    """It drafts for a target, whose greedy text stays the same."""
    without = ("--draft", "none", "--spec", "off")
    with_draft = ("--draft", draft, "--spec", "model")
    plain = localspec("run", target, *without, *ASKED).document
    got = localspec("run", target, *with_draft, *ASKED).document
    assert got["text"] == plain["text"]
    assert got["speculation"]["drafted"] > 0


def test_models_and_layers_that_are_refused(zoo: Zoo, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    for model, arguments, words in (
        ("target", ("--keep", "0-9"), "no layer 2"),
        ("target", ("--keep", "1-0"), "'1-0' is no layer"),
        ("target", ("--keep", ""), "it is empty"),
        ("target", (), "names no layer to exit from"),
        ("hybrid", ("--keep", "0"), "recurrent state"),
        ("eagle3", ("--keep", "0"), "draft head"),
        ("vocabulary-only", ("--keep", "0"), "no weights"),
    ):
        given = (zoo[model], *arguments, *out_to(out), "--json")
        done = localspec("make-draft", *given)
        assert done.code in (2, 12)
        assert words in json.dumps(done.document["error"]["message"])
        assert not out.exists()


def test_an_existing_file_is_not_replaced(zoo: Zoo, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    out.write_bytes(b"mine")
    given = (zoo["target"], "--keep", "0", *out_to(out))

    done = localspec("make-draft", *given)

    assert done.code == 2
    assert out.read_bytes() == b"mine"


def test_a_folder_that_is_not_there_is_a_storage_error(
    zoo: Zoo, tmp_path: Path
) -> None:
    given = (zoo["target"], "--keep", "0", *out_to(tmp_path / "no" / "x"))

    assert localspec("make-draft", *given).code == 8


@pytest.fixture
def trimmed(zoo: Zoo, tmp_path: Path) -> Path:
    """A draft with the 40 tokens that a text uses most, and the first ones."""
    text = tmp_path / "text.txt"
    text.write_text("the one the two the three " * 20)
    draft = tmp_path / "trimmed.gguf"
    given = (zoo["cousin"], "--vocab", "40", "--from", text, *out_to(draft))

    done = localspec("make-draft", *given, "--json").document

    assert done["tokens"] == 40
    assert done["coverage"] == 1.0
    assert done["layers"] == [0, 1]
    return draft


def test_a_trimmed_vocabulary_has_fewer_output_rows(zoo: Zoo, trimmed: Path) -> None:
    before = reader.read(zoo["cousin"]).tensors_by_name["output.weight"]
    after = reader.read(trimmed).tensors_by_name["output.weight"]

    assert after.n_bytes / 40 == before.n_bytes / before.shape[1]


def test_a_draft_with_a_trimmed_vocabulary_drafts(zoo: Zoo, trimmed: Path) -> None:
    assert localspec("pair", "check", zoo["target"], trimmed).code == 0
    check_that_it_drafts(zoo["target"], trimmed)


def test_vocabularies_that_are_refused(zoo: Zoo, trimmed: Path, tmp_path: Path) -> None:
    """A trimmed model is neither a target nor a source; others cannot be trimmed."""
    out = tmp_path / "none.gguf"
    to_out = out_to(out)
    cousin = zoo["cousin"]
    hybrid = zoo["hybrid"]
    for refused, words in (
        (("run", trimmed, *ASKED), "not a complete model"),
        (("convert", trimmed, "--type", "Q4_0", *to_out), "is trimmed"),
        (("make-draft", trimmed, "--vocab", "20", *to_out), "trimmed already"),
        (("make-draft", cousin, "--vocab", "32k", *to_out), "no number of tokens"),
        (("make-draft", hybrid, "--vocab", "40", *to_out), "cannot be trimmed"),
        (("make-draft", cousin, "--vocab", "40", *to_out), "no kept answer"),
    ):
        failed = localspec(*refused)
        assert failed.code in (2, 12)
        assert words in failed.err + failed.out.decode()
        assert not out.exists()


def test_the_answers_of_kept_chats_are_counted(zoo: Zoo, tmp_path: Path) -> None:
    with closing(ChatHistory.open()) as history:
        put(history, ("what?", "the end"), ("and then?", "in the end"))
    given = ("--vocab", "2", *out_to(tmp_path / "trimmed.gguf"), "--json")

    done = localspec("make-draft", zoo["cousin"], *given)

    # The most used of 12 tokens are `▁`, three times, and `▁the`, twice.
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
