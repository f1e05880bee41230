"""A vocabulary from a header is what llama.cpp makes of the file."""

from importlib.util import find_spec
from pathlib import Path

from localspec.models.gguf import architectures, reader, tokenizer
from localspec.models.gguf.tokenizer import NULL_TOKEN, TokenizerMetadata
from tests.models import gguffile
from tests.models.gguffile import U32, WORDS, File


def read(file: File) -> TokenizerMetadata:
    data = file.data()
    return reader.parse(data, len(data)).tokenizer


SILENT = [
    (b"llama", tokenizer.SPM, (1, 2), (True, False)),
    (b"gpt2", tokenizer.BPE, (11, 11), (False, False)),
    (b"gemma4", tokenizer.BPE, (NULL_TOKEN, NULL_TOKEN), (True, False)),
    (
        b"bert",
        tokenizer.WPM,
        (NULL_TOKEN, NULL_TOKEN),
        (True, False),
    ),  # 101 is not in so few words
    (b"t5", tokenizer.UGM, (NULL_TOKEN, 1), (False, True)),
    (b"rwkv", tokenizer.RWKV, (NULL_TOKEN, NULL_TOKEN), (False, False)),
    (b"plamo2", tokenizer.PLAMO2, (1, 2), (False, False)),
    (b"magic", tokenizer.UNKNOWN, (NULL_TOKEN, NULL_TOKEN), (False, False)),
]


def test_what_holds_where_the_file_says_nothing() -> None:
    for model, kind, special, adds in SILENT:
        found = read(gguffile.model(tokenizer=model))
        assert found.kind == kind
        assert (found.bos, found.eos) == special
        assert (found.add_bos, found.add_eos) == adds
        assert found.is_supported == (kind != tokenizer.UNKNOWN)


def test_tokens_that_end_an_answer() -> None:
    words = [*WORDS, b"<|im_end|>", b"<|endoftext|>", b"<|fim_pad|>", b"<|eom_id|>"]
    found = read(gguffile.model(words))
    assert found.eog_ids == {2, 63, 64, 65, 66}
    assert found.special_ids["eot"] in (63, 64)


def test_texts_are_cut_and_named_as_c_strings() -> None:
    words = [b"a", b"", b"b\0c", bytes(3)]
    found = read(gguffile.model(words))
    assert [found.token_text(i) for i in range(4)] == [
        b"a",
        b"[EMPTY_1]",
        b"b",
        b"[EMPTY_3]",
    ]


def test_a_fingerprint_is_of_texts_and_types() -> None:
    base = read(gguffile.model()).fingerprint
    assert base == read(gguffile.model(arch=b"qwen2")).fingerprint
    others = [
        gguffile.model([*WORDS[:-1], b"other"]),
        gguffile.model(
            [*WORDS[:-2], b"word58w", b"ord59"]
        ),  # the same bytes, cut elsewhere
        gguffile.model().put(b"tokenizer.ggml.token_type", 5, [2] * len(WORDS)),
    ]
    assert len({base, *(read(file).fingerprint for file in others)}) == 4


def test_a_model_without_vocabulary() -> None:
    file = gguffile.model(tokenizer=b"none").add(b"llama.vocab_size", U32, 1000)
    found = read(file)
    assert found.kind == tokenizer.NONE
    assert found.n_tokens == 1000
    assert found.fingerprint == ""


def test_the_pinned_llama_cpp_knows_these_names() -> None:
    """Each stands in the library as a text of its own."""
    found = find_spec("llama_cpp")
    assert found is not None
    assert found.origin is not None
    libraries = [
        path.read_bytes()
        for path in (Path(found.origin).parent / "lib").iterdir()
        if path.name.startswith(("libllama.", "llama."))
    ]
    for name in architectures.KNOWN | tokenizer.PRETOKENIZERS:
        assert any(name.encode() in library for library in libraries), name
