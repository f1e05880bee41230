"""llama.cpp's rule for pairs, and which part of it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.gguf.tokenizer import TokenizerMetadata, TokenTexts
from localspec.models.pair_compatibility import check_vocabularies
from tests.models import gguffile
from tests.models.gguffile import STRING, U32, WORDS, File, Tensor
from tests.support.zoo import Zoo

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


def test_the_same_vocabulary() -> None:
    verdict = check_vocabularies(TARGET, vocabulary())
    assert verdict.is_compatible
    assert (verdict.verdict, verdict.rule, verdict.token) == (
        "compatible",
        "same-vocabulary",
        None,
    )
    assert "1,000" in verdict.detail


def test_padding_is_allowed_both_ways() -> None:
    for n_tokens in (1000 - 128, 999, 1001, 1000 + 128):
        verdict = check_vocabularies(TARGET, vocabulary(n_tokens))
        assert verdict.verdict == "compatible-padding"
        assert verdict.token == min(1000, n_tokens)


def test_too_different_a_size_is_not() -> None:
    for n_tokens in (1000 - 129, 1000 + 129, 50_000, 5):
        verdict = check_vocabularies(TARGET, vocabulary(n_tokens))
        assert (verdict.is_compatible, verdict.rule) == (False, "vocabulary-size")
        assert f"{n_tokens:,}" in verdict.detail


def test_the_first_token_that_differs_is_named() -> None:
    for token in (5, 6, 500, 999):
        draft = vocabulary(other={token: b"mine", 999: b"also"})
        verdict = check_vocabularies(TARGET, draft)
        assert (verdict.is_compatible, verdict.rule, verdict.token) == (False, "token-text", token)
        shown = "'also'" if token == 999 else "'mine'"
        assert (
            f"token {token} is {shown} in the draft and 'word{token}' in the target"
            in verdict.detail
        )


def test_the_first_five_may_differ() -> None:
    draft = vocabulary(other={i: b"<special>" for i in range(5)})
    assert check_vocabularies(TARGET, draft).verdict == "compatible"


@pytest.mark.parametrize(
    ("draft", "rule", "words"),
    [
        (vocabulary(kind=BPE), "vocabulary-type", "of type BPE, the target's is SPM"),
        (vocabulary(kind=99), "vocabulary-type", "of type 99"),
        (vocabulary(add_bos=False), "add-bos", "only the target adds a BOS"),
        (vocabulary(add_eos=True), "add-eos", "only the draft adds a EOS"),
        (vocabulary(bos=7), "bos", "its BOS token is 7, the target's is 1"),
    ],
)
def test_what_else_refuses(draft: TokenizerMetadata, rule: str, words: str) -> None:
    verdict = check_vocabularies(TARGET, draft)
    assert (verdict.is_compatible, verdict.rule) == (False, rule)
    assert words in verdict.detail


def test_a_bos_that_nobody_adds_may_differ() -> None:
    target = replace(TARGET, add_bos=False)
    assert check_vocabularies(target, vocabulary(add_bos=False, bos=7)).is_compatible


def test_an_eos_that_both_add_must_be_the_same() -> None:
    verdict = check_vocabularies(vocabulary(add_eos=True), vocabulary(add_eos=True, eos=9))
    assert (verdict.rule, verdict.token) == ("eos", 9)


def test_the_order_is_llama_cpps() -> None:
    """Type, then special tokens, then size, then texts."""
    wrong: dict[str, Any] = {"kind": BPE, "add_bos": False, "n_tokens": 5000, "other": {5: b"x"}}
    order = []
    for mended in list(wrong):
        draft = vocabulary(**wrong)
        order.append(check_vocabularies(TARGET, draft).rule)
        del wrong[mended]
    assert order == ["vocabulary-type", "add-bos", "vocabulary-size", "token-text"]


def test_texts_of_a_hostile_vocabulary_are_shown_clean() -> None:
    draft = vocabulary(other={8: b"\x1b]52;c;cHduZWQ=\x07rude \xff\xc2\x9b"})
    detail = check_vocabularies(TARGET, draft).detail
    assert detail.isprintable()
    assert "rude" in detail


# --- from headers -------------------------------------------------------------------------------


def parsed(file: File) -> Header:
    data = file.data()
    return reader.parse(data, len(data))


@pytest.mark.parametrize(
    ("target", "draft", "rule", "token"),
    [
        ("f32", "target", "same-vocabulary", None),
        ("f32", "padded", "vocabulary-size", 365),
        ("f32", "wide", "vocabulary-size", None),
        ("f32", "renamed", "token-text", 257),
        ("f32", "no-tokenizer", "vocabulary-type", None),
        ("no-tokenizer", "no-tokenizer", "vocabulary-type", None),
    ],
)
def test_two_files(zoo: Zoo, target: str, draft: str, rule: str, token: int | None) -> None:
    a, b = (reader.read(zoo[name]).tokenizer for name in (target, draft))
    verdict = check_vocabularies(a, b)
    assert (verdict.rule, verdict.token) == (rule, token)
    assert verdict.is_compatible == (rule == "same-vocabulary" or draft == "padded")


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
    (sized(99, gguffile.model(arch=b"jamba")), sized(9), "speculation is off"),
    (sized(99), sized(9, gguffile.model(arch=b"rwkv7")), "it is not used"),
    (sized(99), sized(9, gguffile.model(arch=b"qwen35")), "it is not used"),
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
