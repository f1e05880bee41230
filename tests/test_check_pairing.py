"""scripts/check_pairing.py: verdicts from headers equal llama.cpp's, on generated vocabularies."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from gguf import GGUFWriter

from tests import tinygguf
from tests.tinygguf import WORDS, Model

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_pairing.py"


def check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def spm(words: tuple[str, ...] = WORDS, **changes: Any) -> Model:
    model = replace(tinygguf.llama(0, words=words), tensors={})
    return replace(model, **changes)


def renamed(token: int) -> Model:
    tokens = spm().vocabulary()
    tokens[token] = "▁other"
    return spm(tokens=tokens)


def bpe(path: Path, pre: str, n_tokens: int = 300, **keys: int | bool) -> None:
    """A byte-level vocabulary; `keys` are of tokenizer.ggml."""
    letters = [chr(i) for i in (*range(33, 127), *range(161, 173), *range(174, 256))]
    letters += [chr(256 + i) for i in range(256 - len(letters))]
    ends = ["<|im_end|>", "<|endoftext|>"]
    tokens = [*letters, *(f"w{i}" for i in range(n_tokens - 258)), *ends]
    writer = GGUFWriter(str(path), "qwen2")
    writer.add_uint32("qwen2.block_count", 1)
    writer.add_uint32("qwen2.context_length", 512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    for key, value in keys.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabularies(folder: Path) -> None:
    models = {
        "same": spm(),
        "padded": spm((*WORDS, "▁pad")),
        "most-padded": spm((*WORDS, *(f"▁pad{i}" for i in range(128)))),
        "too-padded": spm((*WORDS, *(f"▁pad{i}" for i in range(129)))),
        "second-renamed": renamed(4),
        "fifth-renamed": renamed(5),
        "last-renamed": renamed(364),
        "ends": spm((*WORDS, "<|im_end|>"), controls=("<|im_end|>",)),
    }
    for name, model in models.items():
        model.write(folder / f"{name}.gguf")
    bpe(folder / "bpe.gguf", "qwen2")
    bpe(folder / "bpe-bos.gguf", "llama-bpe")
    bpe(folder / "bpe-no-bos.gguf", "llama-bpe", add_bos_token=False)
    bpe(folder / "bpe-other-bos.gguf", "llama-bpe", bos_token_id=7)
    bpe(folder / "bpe-unknown-bos.gguf", "llama-bpe", bos_token_id=7000)
    bpe(folder / "bpe-eos.gguf", "qwen2", add_eos_token=True)
    bpe(folder / "bpe-other-eos.gguf", "qwen2", add_eos_token=True, eos_token_id=299)
    bpe(folder / "bpe-glm.gguf", "glm4")
    bpe(folder / "bpe-gemma.gguf", "gemma4", add_bos_token=False, bos_token_id=3)
    bpe(folder / "bpe-shorter.gguf", "qwen2", 299)


def test_verdicts_equal_llama_cpps(tmp_path: Path) -> None:
    vocabularies(tmp_path)
    done = check(tmp_path, "--range", "--markdown", tmp_path / "table.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 files, 324 pairs: 0 differences" in done.stdout
    assert "same.gguf: " in done.stdout  # by Range
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "18 files, 324 ordered pairs." in table
    assert "Differences: 0." in table
    body = table.partition("A row is a target")[2]
    for sign in ["=", "p", "t", "b", "e", "s", "5", "364"]:
        assert f" {sign} |" in body, sign


def test_a_folder_without_models_is_a_failure(tmp_path: Path) -> None:
    assert check(tmp_path).returncode == 1
