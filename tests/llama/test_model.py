"""Text to tokens and back, with ids checked before llama.cpp aborts on them."""

import base64
import random
import string
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.llama.context import LlamaContext
from localspec.llama.model import LlamaVocab
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from tests.support import tinygguf
from tests.support.sessions import SETTINGS
from tests.support.tinygguf import BOS, EOS
from tests.support.zoo import Zoo

DEMO = package_data_dir() / "demo" / "demo-draft.gguf"
TEXTS = [
    "the one",
    "  two  spaces\tand\n\nlines \r\n",
    "é 漢字 🙂 \u202e \x1b[31m",
    "zero \x00 inside",
    "<s> is no text here </s",
    "ﬀ" * 300,
]


@contextmanager
def vocabulary(path: Path) -> Iterator[LlamaVocab]:
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as model:
        yield model.vocabulary


@pytest.fixture(scope="module")
def words(zoo: Zoo) -> Iterator[LlamaVocab]:
    """An SPM vocabulary with byte tokens."""
    with vocabulary(zoo["target"]) as words:
        yield words


@pytest.fixture(scope="module")
def bpe() -> Iterator[LlamaVocab]:
    with vocabulary(DEMO) as bpe:
        yield bpe


def test_pieces_are_the_text_again(words: LlamaVocab, bpe: LlamaVocab) -> None:
    for text in TEXTS:
        assert b"".join(map(bpe.piece, bpe.tokenize(text))).decode() == text
        if "<s>" not in text:
            assert (
                b"".join(map(words.piece, words.tokenize(text))).decode() == " " + text
            )
    text = "def f(x):\n    return x\n" * 20_000
    assert sum(len(bpe.piece(token)) for token in bpe.tokenize(text)) == len(text)


def test_special_tokens_are_recognised_and_a_first_one_is_added(
    words: LlamaVocab, bpe: LlamaVocab
) -> None:
    first, the = words.tokenize("the")
    assert (first, words.token_text(the)) == (BOS, "▁the".encode())
    assert words.tokenize("the</s>")[-1] == EOS
    assert (words.tokenize(""), bpe.tokenize("")) == ([BOS], [])
    assert words.piece(words.tokenize("a\udcff")[-1]) == b"?", (
        "a surrogate is no character"
    )


def test_an_eos_that_a_file_adds_ends_no_prompt(
    words: LlamaVocab, tmp_path: Path
) -> None:
    """Fine-tunes keep tokenizer.ggml.add_eos_token from training."""
    path = replace(tinygguf.llama(0), add_eos=True).write(tmp_path / "eos.gguf")
    with vocabulary(path) as adding:
        assert adding.add_eos
        for text in ("the", "the</s>", ""):
            assert adding.tokenize(text) == words.tokenize(text)


DIGITS = string.digits
LETTERS = string.ascii_letters
RUNS: dict[str, str] = {
    "one letter": "A" * 30_000,
    "letters": "".join(random.Random(1).choices(LETTERS, k=30_000)),
    "base64": base64.b64encode(random.Random(2).randbytes(20_000)).decode(),
    "digits": "".join(random.Random(3).choices(DIGITS, k=20_001)),
    "signs": "=" * 15_000 + "word",
    "numbers": ",".join(random.Random(4).choices(DIGITS, k=9_000)),
    "digits in letters": "A" * 5_000 + "1" * 5_003 + "B" * 9_000,
    "spaces": " " * 15_000 + "word",
    "lines": " \n" * 6_000 + " word",
    "ideographs": "".join(random.Random(5).choices("的一是不了人我在有他", k=9_000)),
    "marks": "नमस्तेदुनिया" * 700,
    "emoji": "🙂" * 3_000,
    "in a text": "Hello world. " * 300
    + "Z" * 20_000
    + " and then <|endoftext|>\n"
    + "q" * 9_000,
}


@pytest.fixture(scope="module", params=["gpt-2", "llama-bpe", "bloom", "afmoe"])
def pre_tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaVocab]:
    """The demo's vocabulary with another pre-tokenizer.

    `llama-bpe` counts digits in threes, and has a BOS, `afmoe` counts them from the
    right; to `bloom` all but spaces is one word.
    """
    data = DEMO.read_bytes()
    # a key that may be missing: all stays in its place
    length = "llama.rope.dimension_count"
    for old, new in (
        (length, length[: 31 - len(request.param)]),
        ("gpt-2", request.param),
    ):
        before, after = (
            struct.pack("<Q", len(text)) + text.encode() for text in (old, new)
        )
        assert before in data
        data = data.replace(before, after, 1)
    path: Path = tmp_path_factory.mktemp("pre") / "model.gguf"
    path.write_bytes(data)
    with vocabulary(path) as found:
        yield found


def test_a_long_run_has_the_tokens_that_it_has_in_one_piece(
    pre_tokenizer: LlamaVocab,
) -> None:
    whole = dict[str, list[int]]()

    def tokenize() -> None:
        for name, text in RUNS.items():
            whole[name] = pre_tokenizer._tokenize(text.encode(), True, True)

    before = threading.stack_size(2**30)
    try:
        worker = threading.Thread(target=tokenize)
        worker.start()
        worker.join()
    finally:
        threading.stack_size(before)
    for name, text in RUNS.items():
        assert pre_tokenizer.tokenize(text) == whole[name], name


@settings(derandomize=True, max_examples=60)
@given(text=st.text("ab \né🙂<|/>", max_size=12))
def test_a_continuation_says_its_text_and_nothing_else(
    words: LlamaVocab, bpe: LlamaVocab, text: str
) -> None:
    for vocabulary in (words, bpe):
        tokens = vocabulary.tokenize_continuation(text)
        assert b"".join(map(vocabulary.piece, tokens)).decode() == text


@pytest.mark.parametrize("mark", ["\u0301", "\u093f"])
def test_control_tokens_beside_a_run_without_a_place_to_cut_stay_control_tokens(
    mark: str, pre_tokenizer: LlamaVocab
) -> None:
    """No word ends among combining marks, so the run is cut wherever 8,192 bytes end."""
    name = "<|endoftext|>"
    (control,) = pre_tokenizer.tokenize(name, add_special=False)
    run = mark * 6_000

    for n_before in (0, 1_500, 3_580, 3_584, 3_590, 4_000):
        text = f"{name}Hi {name} {run[:n_before]}{name}{run[n_before:]}{name} Bye"
        tokens = pre_tokenizer.tokenize(text, add_special=False)

        assert tokens.count(control) == 4
        shown = (pre_tokenizer.piece(token) for token in tokens)
        assert b"".join(shown).decode() == text.replace(name, "")

    plain = pre_tokenizer.tokenize(text, add_special=False, parse_special=False)
    assert control not in plain
