"""Training text of the demo pair: Python's standard library, and its vocabulary.

The data is the library source of the Python that runs this script (PSF licence).
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

VOCAB = 4096
EOS = "<|endoftext|>"
SEED = 20261121

HELD_OUT = (
    "bisect", "calendar", "cmd", "colorsys", "configparser", "csv", "difflib", "fractions",
    "heapq", "queue", "sched", "shlex", "statistics", "string", "textwrap", "timeit", "wave",
    "json.decoder", "json.encoder", "concurrent.futures.thread", "importlib.metadata._text",
    "unittest.util", "xml.sax.saxutils",
)  # fmt: skip
"""Held-out modules: the loss is measured on them, and prompts for tests come from them.
"""

SKIPPED = re.compile(
    r"(^|/)(site-packages|pydoc_data|config-[^/]*|_sysconfigdata[^/]*|turtledemo|"
    r"encodings/(cp|iso|mac|koi|big5|euc|gb|hp|johab|kz|ptcp|shift|tis)[^/]*)"
)
"""Tables and generated files."""


def modules(root: Path) -> Iterator[tuple[str, str, bool]]:
    """(dotted name, source, is a test) of every standard-library module, by name."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED.search(name):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        is_test = re.search(r"(^|\.)(test|tests|idle_test)(\.|$)", dotted) is not None
        yield dotted, text, is_test


def functions(source: str) -> Iterator[str]:
    """The source of functions of 5 to 40 lines."""
    lines = source.splitlines()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef)
            and node.end_lineno
            and 5 <= node.end_lineno - node.lineno < 40
        ):
            yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def edit_task(function: str, rng: random.Random) -> str | None:
    """The function, then the same function slightly changed.

    It teaches the models to copy.
    """
    names = sorted(
        set(re.findall(r"\b[a-z_]{3,}\b", function)) - {"self", "def", "return", "None"}
    )
    numbers = sorted(set(re.findall(r"\b\d+\b", function)))
    kind = rng.choice(["rename", "rename", "number", "function", "same"])
    if kind == "number" and numbers:
        old = rng.choice(numbers)
        new = str(int(old) * 2 + 1)
    elif kind == "function":
        old = re.search(r"def (\w+)", function)[1]
        new = rng.choice(["new_", "my_", "do_"]) + old.lstrip("_")
    elif kind == "rename" and len(names) > 3:
        old, other = rng.sample(names, 2)
        new = rng.choice([other + "_" + old, old + "_value", old[:1] + "_" + other])
    else:
        return f"# Before:\n{function}\n\n# After: unchanged\n{function}\n"
    changed = re.sub(rf"\b{re.escape(old)}\b", new, function)
    return f"# Before:\n{function}\n\n# After: {old} becomes {new}\n{changed}\n"


@dataclass
class Corpus:
    """Documents for training and for measuring."""

    library: list[str]
    tests: list[str]
    edits: list[str]
    held_out: list[str]

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in (self.library, self.tests, self.edits, self.held_out):
            for text in part:
                digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def read_corpus() -> Corpus:
    rng = random.Random(SEED)
    library = []
    tests = []
    held_out = []
    source_of_edits = []
    for name, text, is_test in modules(Path(sysconfig.get_path("stdlib"))):
        if name in HELD_OUT:
            held_out.append(text)
        elif is_test:
            tests.append(text)
        elif text.strip():
            library.append(text)
            source_of_edits += functions(text)
    rng.shuffle(source_of_edits)
    size = sum(map(len, library)) + sum(map(len, tests))
    edits: list[str] = []
    while (total := sum(map(len, edits))) < size / 9:
        room = size / 9 - total
        for function in source_of_edits:
            text = edit_task(function, rng)
            edits.append(text)
            room -= len(text)
            if room < 0:
                break
    return Corpus(library, tests, edits, held_out)


def train_tokenizer(corpus: Corpus) -> Tokenizer:
    """Uses GPT-2's pre-tokenizer (llama.cpp: `gpt-2`); EOS is the last id."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=True
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.library, trainer)
    tokenizer.add_special_tokens([EOS])
    if tokenizer.get_vocab_size() != VOCAB:
        raise SystemExit(f"expected {VOCAB} tokens, got {tokenizer.get_vocab_size()}")
    return tokenizer


def to_ids(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All texts in one row, EOS after each."""
    end = tokenizer.token_to_id(EOS)
    ids: list[int] = []
    for row in tokenizer.encode_batch(texts):
        ids += [*row.ids, end]
    return torch.tensor(ids, dtype=torch.int64)
