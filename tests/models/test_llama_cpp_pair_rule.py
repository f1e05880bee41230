"""Verdicts from two headers equal llama.cpp's rule on the loaded vocabularies.

The rule is common_speculative_are_compatible (common/speculative.cpp), which the
library does not export: here it is evaluated token by token with the library's
functions.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.llama.library import C
from localspec.models import pair_compatibility
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from tests.models import gguffile
from tests.models.gguffile import BOOL, STRING, U32
from tests.support import tinygguf
from tests.support.tinygguf import WORDS, Model

CHECKOUT = os.environ.get("LLAMA_CPP_CHECKOUT", "")
VocabularyFacts = dict[str, Any]


def load_vocabulary(path: Path) -> tuple[VocabularyFacts, list[bytes]]:
    settings = C.llama_model_default_params()
    settings.vocab_only = True
    model = C.llama_model_load_from_file(os.fsencode(path), settings)
    vocab = C.llama_model_get_vocab(model)
    n_tokens = C.llama_vocab_n_tokens(vocab)
    facts = {
        "kind": int(C.llama_vocab_type(vocab)),
        "n_tokens": int(n_tokens),
        "add_bos": bool(C.llama_vocab_get_add_bos(vocab)),
        "add_eos": bool(C.llama_vocab_get_add_eos(vocab)),
        "bos": int(C.llama_vocab_bos(vocab)),
        "eos": int(C.llama_vocab_eos(vocab)),
        "ends": [i for i in range(n_tokens) if C.llama_vocab_is_eog(vocab, i)],
    }
    texts = [bytes(C.llama_vocab_get_text(vocab, i) or b"") for i in range(n_tokens)]
    C.llama_model_free(model)
    return facts, texts


def are_compatible(
    a: VocabularyFacts, texts_a: list[bytes], b: VocabularyFacts, texts_b: list[bytes]
) -> tuple[bool, str, int | None]:
    """Line by line as in llama.cpp: whether, by which rule, and the token that decides."""
    for is_met, rule, token in (
        (a["kind"] == b["kind"], "vocabulary-type", None),
        (a["add_bos"] == b["add_bos"], "add-bos", None),
        (not a["add_bos"] or a["bos"] == b["bos"], "bos", b["bos"]),
        (a["add_eos"] == b["add_eos"], "add-eos", None),
        (not a["add_eos"] or a["eos"] == b["eos"], "eos", b["eos"]),
        (abs(a["n_tokens"] - b["n_tokens"]) <= 128, "vocabulary-size", None),
    ):
        if not is_met:
            return False, rule, token
    common = min(a["n_tokens"], b["n_tokens"])
    for i in range(5, common):
        if texts_a[i] != texts_b[i]:
            return False, "token-text", i
    if a["n_tokens"] != b["n_tokens"]:
        return True, "vocabulary-size", common
    return True, "same-vocabulary", None


def compare(folder: Path) -> set[tuple[bool, str]]:
    """Asserts that both sides agree on all files and pairs.

    Returns the verdicts that occurred.
    """
    paths = sorted(folder.glob("*.gguf"))
    theirs = [load_vocabulary(path) for path in paths]
    headers = [reader.read(path) for path in paths]
    verdicts = set()
    for target, header, known in zip(paths, headers, theirs, strict=True):
        assert facts_of(header) == known[0], target.name
        for draft, other, its in zip(paths, headers, theirs, strict=True):
            found = pair_compatibility.check_vocabularies(
                header.tokenizer, other.tokenizer
            )
            verdict = found.is_compatible, found.rule, found.token
            assert verdict == are_compatible(*known, *its), (
                f"{target.name} + {draft.name}"
            )
            verdicts.add(verdict[:2])
    return verdicts


def facts_of(found: Header) -> VocabularyFacts:
    names = ("kind", "n_tokens", "add_bos", "add_eos", "bos", "eos")
    facts = {name: getattr(found.tokenizer, name) for name in names}
    return facts | {"ends": sorted(found.tokenizer.eog_ids)}


def spm(words: tuple[str, ...] = WORDS, **changes: Any) -> Model:
    return replace(tinygguf.llama(0, words=words), tensors={}, **changes)


def renamed(token: int) -> Model:
    tokens = spm().vocabulary()
    tokens[token] = "▁other"
    return spm(tokens=tokens)


def write_bpe(path: Path, pre: str, n_tokens: int = 300, **keys: int | bool) -> None:
    """A byte-level vocabulary; `keys` are of tokenizer.ggml."""
    letters = [chr(i) for i in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    ends = ["<|im_end|>", "<|endoftext|>"]
    words = [*letters, *(f"w{i}" for i in range(n_tokens - 258)), *ends]
    file = gguffile.model(
        [word.encode() for word in words], tokenizer=b"gpt2", arch=b"qwen2"
    )
    file.add(b"tokenizer.ggml.pre", STRING, pre.encode())
    for key, value in keys.items():
        kind = BOOL if isinstance(value, bool) else U32
        file.add(f"tokenizer.ggml.{key}".encode(), kind, value)
    path.write_bytes(file.data())


def test_verdicts_on_made_vocabularies(tmp_path: Path) -> None:
    models = {
        "same": spm(), "padded": spm((*WORDS, "▁pad")),
        "most-padded": spm((*WORDS, *(f"▁pad{i}" for i in range(128)))),
        "too-padded": spm((*WORDS, *(f"▁pad{i}" for i in range(129)))),
        "second-renamed": renamed(4), "fifth-renamed": renamed(5), "last-renamed": renamed(364),
        "ends": spm((*WORDS, "<|im_end|>"), controls=("<|im_end|>",)),
    }  # fmt: skip
    for name, model in models.items():
        model.write(tmp_path / f"{name}.gguf")
    write_bpe(tmp_path / "bpe.gguf", "qwen2")
    write_bpe(tmp_path / "bpe-bos.gguf", "llama-bpe")
    write_bpe(tmp_path / "bpe-no-bos.gguf", "llama-bpe", add_bos_token=False)
    write_bpe(tmp_path / "bpe-other-bos.gguf", "llama-bpe", bos_token_id=7)
    write_bpe(tmp_path / "bpe-unknown-bos.gguf", "llama-bpe", bos_token_id=7000)
    write_bpe(tmp_path / "bpe-eos.gguf", "qwen2", add_eos_token=True)
    write_bpe(
        tmp_path / "bpe-other-eos.gguf", "qwen2", add_eos_token=True, eos_token_id=299
    )
    write_bpe(tmp_path / "bpe-glm.gguf", "glm4")
    write_bpe(
        tmp_path / "bpe-gemma.gguf", "gemma4", add_bos_token=False, bos_token_id=3
    )
    write_bpe(tmp_path / "bpe-shorter.gguf", "qwen2", 299)
    refused = {"vocabulary-type", "add-bos", "bos", "add-eos", "eos", "token-text"}
    expected = {(False, rule) for rule in (*refused, "vocabulary-size")}
    assert compare(tmp_path) == expected | {
        (True, "vocabulary-size"),
        (True, "same-vocabulary"),
    }


@pytest.mark.long
@pytest.mark.skipif(
    not CHECKOUT, reason="LLAMA_CPP_CHECKOUT names no source tree of llama.cpp"
)
def test_verdicts_on_the_vocabularies_of_llama_cpp() -> None:
    assert compare(Path(CHECKOUT) / "models")
