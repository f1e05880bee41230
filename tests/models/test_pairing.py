"""llama.cpp's rule for pairs, and which part of it fails."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.gguf.tokenizer import TokenTexts
from tests.models import gguffile
from tests.models.gguffile import STRING, U32, WORDS, File, Tensor
from tests.zoo import Zoo

SPM, BPE = 1, 2


@dataclass
class Words:
    """A vocabulary of invented tokens."""

    n_tokens: int = 1000
    kind: int = SPM
    add_bos: bool = True
    add_eos: bool = False
    bos: int = 1
    eos: int = 2
    other: dict[int, bytes] = field(default_factory=dict)
    """Tokens that read differently."""

    def token_text(self, token: int) -> bytes:
        assert 0 <= token < self.n_tokens
        return self.other.get(token, b"word%d" % token)


TARGET = Words()


def test_the_same_vocabulary() -> None:
    verdict = pair_compatibility.check_vocabularies(TARGET, Words())
    assert verdict.is_compatible
    assert (verdict.verdict, verdict.rule, verdict.token) == (
        "compatible",
        "same-vocabulary",
        None,
    )
    assert "1,000" in verdict.detail


def test_padding_is_allowed_both_ways() -> None:
    for n_tokens in (1000 - 128, 999, 1001, 1000 + 128):
        verdict = pair_compatibility.check_vocabularies(TARGET, Words(n_tokens))
        assert verdict.verdict == "compatible-padding"
        assert verdict.token == min(1000, n_tokens)


def test_too_different_a_size_is_not() -> None:
    for n_tokens in (1000 - 129, 1000 + 129, 50_000, 5):
        verdict = pair_compatibility.check_vocabularies(TARGET, Words(n_tokens))
        assert (verdict.is_compatible, verdict.rule) == (False, "vocabulary-size")
        assert f"{n_tokens:,}" in verdict.detail


def test_the_first_token_that_differs_is_named() -> None:
    for token in (5, 6, 500, 999):
        draft = Words(other={token: b"mine", 999: b"also"})
        verdict = pair_compatibility.check_vocabularies(TARGET, draft)
        assert (verdict.is_compatible, verdict.rule, verdict.token) == (False, "token-text", token)
        shown = "'also'" if token == 999 else "'mine'"
        assert (
            f"token {token} is {shown} in the draft and 'word{token}' in the target"
            in verdict.detail
        )


def test_the_first_five_may_differ() -> None:
    draft = Words(other={i: b"<special>" for i in range(pair_compatibility.FIRST_COMPARED_TOKEN)})
    assert pair_compatibility.check_vocabularies(TARGET, draft).verdict == "compatible"


@pytest.mark.parametrize(
    ("draft", "rule", "words"),
    [
        (Words(kind=BPE), "vocabulary-type", "of type BPE, the target's is SPM"),
        (Words(kind=99), "vocabulary-type", "of type 99"),
        (Words(add_bos=False), "add-bos", "only the target adds a BOS"),
        (Words(add_eos=True), "add-eos", "only the draft adds a EOS"),
        (Words(bos=7), "bos", "its BOS token is 7, the target's is 1"),
    ],
)
def test_what_else_refuses(draft: Words, rule: str, words: str) -> None:
    verdict = pair_compatibility.check_vocabularies(TARGET, draft)
    assert (verdict.is_compatible, verdict.rule) == (False, rule)
    assert words in verdict.detail


def test_a_bos_that_nobody_adds_may_differ() -> None:
    target = replace(TARGET, add_bos=False)
    assert pair_compatibility.check_vocabularies(target, Words(add_bos=False, bos=7)).is_compatible


def test_an_eos_that_both_add_must_be_the_same() -> None:
    verdict = pair_compatibility.check_vocabularies(Words(add_eos=True), Words(add_eos=True, eos=9))
    assert (verdict.rule, verdict.token) == ("eos", 9)


def test_the_order_is_llama_cpps() -> None:
    """Type, then special tokens, then size, then texts."""
    draft = Words(5000, kind=BPE, add_bos=False, other={5: b"x"})
    order = []
    for mended in ("kind", "add_bos", "n_tokens"):
        order.append(pair_compatibility.check_vocabularies(TARGET, draft).rule)
        draft = replace(draft, **{mended: getattr(TARGET, mended)})
    order.append(pair_compatibility.check_vocabularies(TARGET, draft).rule)
    assert order == ["vocabulary-type", "add-bos", "vocabulary-size", "token-text"]


def test_texts_of_a_hostile_vocabulary_are_shown_clean() -> None:
    draft = Words(other={8: b"\x1b]52;c;cHduZWQ=\x07rude \xff\xc2\x9b"})
    detail = pair_compatibility.check_vocabularies(TARGET, draft).detail
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
    verdict = pair_compatibility.check_vocabularies(a, b)
    assert (verdict.rule, verdict.token) == (rule, token)
    assert verdict.is_compatible == (rule == "same-vocabulary" or draft == "padded")


def test_equal_fingerprints_need_no_comparison() -> None:
    found = parsed(gguffile.model()).tokenizer

    def read_texts() -> TokenTexts:
        raise AssertionError("texts were compared")

    blank = replace(found, read_texts=read_texts)
    assert pair_compatibility.check_vocabularies(found, blank).verdict == "compatible"


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
