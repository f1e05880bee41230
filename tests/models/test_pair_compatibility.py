"""llama.cpp's rule for pairs, and which part of it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.gguf.tokenizer import TokenizerMetadata, TokenTexts
from localspec.models.pair_compatibility import check_vocabularies
from tests.models import gguffile
from tests.models.gguffile import STRING, U32, WORDS, File, Tensor

SPM, BPE = 1, 2


def vocabulary(
    n_tokens: int = 1000, kind: int = SPM, other: dict[int, bytes] | None = None, **changes: Any
) -> TokenizerMetadata:
    """Of invented tokens, but for those of `other`."""
    special = {"bos": changes.pop("bos", 1), "eos": changes.pop("eos", 2)}
    texts = [(other or {}).get(token, b"word%d" % token) for token in range(n_tokens)]
    return TokenizerMetadata(
        kind,
        "",
        "",
        n_tokens,
        **{"add_bos": True} | changes,
        special_ids=special,
        read_texts=lambda: TokenTexts(texts),
    )


TARGET = vocabulary()
VERDICTS: list[tuple[TokenizerMetadata, str, int | None, str]] = [
    (vocabulary(), "same-vocabulary", None, "the same 1,000 tokens"),
    (vocabulary(1000 - 128), "vocabulary-size", 872, "equal up to padding: 1,000 and 872 tokens"),
    (
        vocabulary(1000 + 129),
        "vocabulary-size",
        None,
        "1,129 tokens, the target's has 1,000",
    ),
    (
        vocabulary(other={9: b"a", 99: b"b"}),
        "token-text",
        9,
        "token 9 is 'a' in the draft and 'wo",
    ),
    (vocabulary(other={8: b"\x1b]52;c;cHc=\x07rude \xff\xc2\x9b"}), "token-text", 8, "rude"),
    (
        vocabulary(5000, kind=BPE, add_bos=False),
        "vocabulary-type",
        None,
        "of type BPE, the target's",
    ),
    (vocabulary(5000, add_bos=False), "add-bos", None, "only the target adds a BOS"),
    (vocabulary(bos=7, other={9: b"a"}), "bos", 7, "its BOS token is 7, the target's is 1"),
]
"""`test_llama_cpp_pair_rule.py` compares the rule with llama.cpp's own."""


def test_a_verdict_names_its_rule_and_the_first_token_that_differs() -> None:
    for draft, rule, token, words in VERDICTS:
        verdict = check_vocabularies(TARGET, draft)
        assert (verdict.rule, verdict.token) == (rule, token)
        assert words in verdict.detail and verdict.detail.isprintable()
        assert verdict.is_compatible == ("same" in words or "padding" in words)
    bare = vocabulary(kind=0)
    assert check_vocabularies(bare, bare).detail == "neither file has a vocabulary"


# --- from headers -------------------------------------------------------------------------------


def parsed(file: File) -> Header:
    data = file.data()
    return reader.parse(data, len(data))


def test_equal_fingerprints_need_no_comparison() -> None:
    found = parsed(gguffile.model()).tokenizer

    def read_texts() -> TokenTexts:
        raise AssertionError("texts were compared")

    blank = replace(found, read_texts=read_texts)
    assert check_vocabularies(found, blank).verdict == "compatible"


def sized(n: int, file: File | None = None) -> File:
    file = file or gguffile.model()
    file.tensors = [Tensor(shape=(32, n))]
    return file


def test_a_good_pair_has_no_warnings() -> None:
    assert pair_compatibility.list_warnings(parsed(sized(100)), parsed(sized(10))) == ()


WARNED = [
    (sized(100), sized(50), "has 50 % of the target's bytes"),
    (
        sized(99).add(b"llama.expert_count", U32, 8).add(b"llama.expert_used_count", U32, 2),
        sized(9),
        "mixture of experts",
    ),
    (
        sized(99, gguffile.model(arch=b"mamba2")),
        sized(9),
        "The target has a recurrent state and cannot remove",
    ),
    (sized(99), sized(9, gguffile.model(arch=b"rwkv7")), "checkpoints for rollback"),
    (sized(99, gguffile.model(arch=b"qwen35")), sized(9), "checkpoints for rollback"),
    (sized(99), sized(9, gguffile.model(arch=b"eagle3")), "hidden states"),
    (sized(99), sized(9, gguffile.model(arch=b"new")), "The draft cannot be run: its arch"),
    (
        sized(99),
        sized(9, gguffile.model().add(b"tokenizer.ggml.pre", STRING, b"\x1b[2Jmy")),
        "Their pre-tokenizers differ (default, my)",
    ),
    (
        sized(99),
        sized(9, gguffile.model([*WORDS, b"<|eot_id|>"])),
        "end-of-generation tokens differ",
    ),
    (
        sized(99).add(b"tokenizer.chat_template", STRING, b"a"),
        sized(9).add(b"tokenizer.chat_template", STRING, b"b"),
        "chat templates differ",
    ),
    (
        sized(99).add(b"general.quantized_by", STRING, b"Ann"),
        sized(9).add(b"general.quantized_by", STRING, b"Bob"),
        "(Ann and Bob)",
    ),
]


def test_what_is_warned_of() -> None:
    for target, draft, words in WARNED:
        (warning,) = pair_compatibility.list_warnings(parsed(target), parsed(draft))
        assert words in warning
        assert warning.isprintable()
