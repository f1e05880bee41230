"""Every reason why a head cannot serve a target is reported before llama.cpp opens them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from localspec import launch
from localspec.errors import IncompatiblePairError, ModelFileError
from localspec.models import draft_heads, pair_compatibility
from localspec.models.gguf import reader
from tests.support import head_models as made
from tests.support import head_targets
from tests.support.tinygguf import WORDS, Model
from tests.support.zoo import Zoo

Make = Callable[[], Model]


def _changed(change: Callable[[Model], object], make: Make | None = None) -> Make:
    def changed() -> Model:
        model = make() if make else made.eagle3(reduced=range(40, 340, 2))
        change(model)
        return model

    return changed


def _block(change: Callable[[Model], object], *, markov: bool = False) -> Make:
    return _changed(change, lambda: made.block(markov=markov))


def _keys(**values: object) -> Callable[[Model], object]:
    keys = {name.replace("__", "."): value for name, value in values.items()}
    return lambda m: m.keys.update(keys)


def _tensors(**values: np.ndarray) -> Callable[[Model], object]:
    tensors = {name.replace("__", "."): value for name, value in values.items()}
    return lambda m: m.tensors.update(tensors)


def _masked_beyond(model: Model) -> None:
    """It has an output of its own, but the target's embeddings.

    These lack its mask token.
    """
    model.words = [*WORDS, "▁pad"]
    model.mask = len(model.vocabulary()) - 1
    model.tensors["output.weight"] = np.zeros((model.mask + 1, 64), np.float32)


def _renamed(model: Model) -> None:
    tokens = model.vocabulary()
    tokens[300] = "▁other"
    model.tokens = tokens


def _selecting(**more: int) -> Make:
    selector = _tensors(selector_hidden__weight=np.zeros((4, 64), np.float32))
    return _block(lambda m: (selector(m), m.keys.update(more)))


KINDS = ("eagle3", "dflash", "dspark")
WRONG: dict[str, Make] = {
    "names 2": lambda: made.eagle3(layers=(1, 2)),
    "layers are 0 to 3": lambda: made.eagle3(layers=(1, 2, 4)),
    "96 wide; the target's are 64": lambda: made.eagle3(of=96),
    "no token_embd of its own, and is 32 wide": _changed(_keys(embedding_length=32)),
    "149 tokens": _changed(lambda m: m.tensors.update(d2t=m.tensors["d2t"][:-1])),
    "I32 and must be I64": _changed(
        lambda m: _tensors(d2t=m.tensors["d2t"].astype(np.int32))(m)
    ),
    "its output has none": _changed(lambda m: m.tensors.pop("output.weight")),
    "it has 2": _changed(_keys(block_count=2)),
    "token 9999 of 365": _changed(lambda m: m.tensors["d2t"].__setitem__(7, 9999)),
    "names tokens twice": _changed(_tensors(d2t=np.arange(150) // 2)),
    "50 embeddings for 365": _changed(
        _tensors(token_embd__weight=np.zeros((50, 32), np.float32)),
        lambda: made.eagle3(n_embd=32),
    ),
    "366 tokens; the target's has 365": _changed(
        lambda m: setattr(m, "words", [*WORDS, "▁pad"]), made.eagle3
    ),
    "3 attention heads cannot share 2": _changed(_keys(attention__head_count=3)),
    "rotates 31 of 32": _changed(_keys(rope__dimension_count=31)),
    "it has no mask token": _block(lambda m: setattr(m, "mask", None)),
    "mask token 5,000 is beyond its 365": _block(lambda m: setattr(m, "mask", 5000)),
    "mask token 365 is not among the target's 365": _block(_masked_beyond),
    "names no layers": _block(lambda m: m.keys.pop("target_layers")),
    "its block size is missing": _block(
        lambda m: m.keys.pop("block_size"), markov=True
    ),
    "blocks of 1 tokens": _block(_keys(block_size=1)),
    "its selector takes 0 of 365 tokens": _selecting(),
    "takes 8 of 365 tokens, and is 64 wide": _selecting(selector_top_k=8),
    "its convolutions are of type Q8_0 and must be F32": lambda: replace(
        made.quantised(made.with_selector(made.block())), exact=()
    ),
    "it is an assistant of gemma4 models, the target is llama": lambda: replace(
        made.eagle3(), arch="gemma4-assistant"
    ),
    "token 300": _changed(_renamed),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_named(zoo: Zoo, tmp_path: Path, words: str) -> None:
    path = WRONG[words]().write(tmp_path / "wrong.gguf")
    verdict = pair_compatibility.check_compatibility(
        reader.read(zoo["deep"]), reader.read(path), path
    )
    assert not verdict.is_compatible
    assert words in verdict.detail
    with pytest.raises(IncompatiblePairError) as refused:
        launch.resolve_pair(str(zoo["deep"]), str(path))
    assert words in refused.value.message
    assert "--draft none" in refused.value.hint


ASSISTANTS: tuple[tuple[dict[str, object], str], ...] = (
    ({"embedding_length_out": 128}, "128 wide; the target's are"),
    ({"embedding_length": 256}, "it is as wide as its target"),
    ({"nextn_predict_layers": 3}, "of which 3 draft"),
    (
        {"attention.head_count_kv": [2, 2, 2, 2]},
        "its layer 3 reads 2 KV heads of 128 and 128; the target's has 1 of 128 and 128",
    ),
    (
        {"attention.key_length_swa": 32},
        "its layer 0 reads 2 KV heads of 32 and 64; the target's has 2 of 64 and 64",
    ),
    ({"attention.sliding_window": 64}, "64 tokens, the target's 32"),
)
"""llama.cpp would abort, read other cells than the target wrote, or refuse it."""


def test_what_is_wrong_with_an_assistant_is_named(zoo: Zoo, tmp_path: Path) -> None:
    target = reader.read(zoo["gemma4"])
    path = tmp_path / "assistant.gguf"
    right = reader.read(made.assistant(head_targets.gemma4()).write(path))
    assert pair_compatibility.check_compatibility(target, right).is_compatible
    for keys, words in ASSISTANTS:
        model = made.assistant(head_targets.gemma4())
        model.keys |= keys
        wrong = reader.read(model.write(path))
        assert words in pair_compatibility.check_compatibility(target, wrong).detail
    other = head_targets.gemma4()
    other.keys["attention.sliding_window_pattern"] = [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    verdict = pair_compatibility.check_compatibility(
        reader.read(other.write(path)), right
    )
    assert "last two layers" in verdict.detail


def test_a_whole_chain_of_layers_can_draft(zoo: Zoo) -> None:
    assert draft_heads.has_own_mtp_layer(reader.read(zoo["chain"]))


def test_a_chain_of_layers_with_a_gap_cannot_draft(tmp_path: Path) -> None:
    """llama.cpp would abort."""
    chain = made.mimo2(n_mtp=3)
    del chain.tensors["blk.5.nextn.eh_proj.weight"]
    header = reader.read(chain.write(tmp_path / "gap.gguf"))

    assert not draft_heads.has_own_mtp_layer(header)


def test_two_layers_of_an_architecture_that_chains_none_cannot_draft(
    tmp_path: Path,
) -> None:
    """llama.cpp would abort, for layers in the target and for layers beside it."""
    two = head_targets.with_layer(head_targets.target("qwen35"), 3)
    two.keys["nextn_predict_layers"] = 2
    header = reader.read(two.write(tmp_path / "two.gguf"))
    del two.tensors["blk.0.attn_norm.weight"]
    alone = reader.read(two.write(tmp_path / "mtp-two.gguf"))

    verdict = pair_compatibility.check_compatibility(header, alone)

    assert not draft_heads.has_own_mtp_layer(header)
    assert "MTP of qwen35 models" in verdict.detail


def test_kinds(zoo: Zoo) -> None:
    kinds = {
        name: draft_heads.file_draft_kind(reader.read(zoo[name]))
        for name in (*KINDS, "deep")
    }
    assert kinds == {
        "eagle3": "eagle3",
        "dflash": "dflash",
        "dspark": "dspark",
        "deep": "model",
    }
    assert all(
        draft_heads.target_layers(reader.read(zoo[name])) == made.TAPS for name in KINDS
    )


def test_a_layer_that_guesses_is_none_to_be_read(zoo: Zoo, tmp_path: Path) -> None:
    """mimo2 has four layers and one that guesses; what leaves the fourth can be read."""
    path = made.eagle3(layers=(1, 2, 4)).write(tmp_path / "last.gguf")
    assert launch.resolve_pair(str(zoo["mimo"]), str(path)).draft == path
    beyond = made.eagle3(layers=(1, 2, 5)).write(tmp_path / "beyond.gguf")
    with pytest.raises(IncompatiblePairError, match="layers are 0 to 4"):
        launch.resolve_pair(str(zoo["mimo"]), str(beyond))


def test_the_form_of_blocks(tmp_path: Path, zoo: Zoo) -> None:
    """A missing key is as llama.cpp takes it; a confidence without its matrix is none."""
    usual = draft_heads.BlockFormat(
        size=6, first_row=0, has_confidence=True, is_causal=False
    )
    for change, expected in (
        (_keys(), usual),
        (_keys(sample_from_anchor=False), replace(usual, first_row=1)),
        (_keys(attention__causal=True), replace(usual, is_causal=True)),
        (_keys(has_confidence_head=False), replace(usual, has_confidence=False)),
        (_without_flags, usual),
        (_without_confidence_matrix, replace(usual, has_confidence=False)),
    ):
        path = _block(change, markov=True)().write(tmp_path / "dspark.gguf")
        assert draft_heads.read_block_format(reader.read(path)) == expected
    dflash = replace(usual, first_row=1, has_confidence=False)
    plain = draft_heads.read_block_format(reader.read(zoo["dflash"]))
    assert plain == dflash
    lattice = draft_heads.read_block_format(reader.read(zoo["dflash2"]))
    assert lattice == replace(dflash, top_k=7)


def _without_flags(model: Model) -> None:
    del model.keys["sample_from_anchor"]
    del model.keys["has_confidence_head"]


def _without_confidence_matrix(model: Model) -> None:
    del model.tensors["conf_proj.weight"]


@pytest.mark.parametrize("make", [made.mimo2, made.block])
def test_a_window_that_no_layer_has(tmp_path: Path, make: Callable[[], Model]) -> None:
    """llama.cpp aborts for it, whether it is a target or a head."""
    model = make()
    model.keys["attention.sliding_window"] = 32
    for pattern, sound in (([False] * 5, False), ([False] * 4 + [True], True)):
        model.keys["attention.sliding_window_pattern"] = pattern
        path = model.write(tmp_path / "windows.gguf")
        if sound:
            reader.check_loadable(path)
        else:
            with pytest.raises(
                ModelFileError, match="sliding_window_pattern is set for no layer"
            ):
                reader.check_loadable(path)


def test_a_head_that_lies_beside_its_target_is_found(zoo: Zoo, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(zoo["deep"].read_bytes())
    assert launch.resolve_pair(str(target), "auto").draft is None
    made.eagle3(of=96).write(tmp_path / "eagle3-another-target.gguf")
    (tmp_path / "eagle3-broken.gguf").write_bytes(b"GGUF")
    assert launch.resolve_pair(str(target), "auto").draft is None
    head = made.eagle3().write(tmp_path / "eagle3-target.gguf")
    assert launch.resolve_pair(str(target), "auto").draft == head
    assert launch.resolve_pair(str(target), "none").draft is None
