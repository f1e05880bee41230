#!/usr/bin/env python3
"""Train the bundled demo pair: a small Python-completing target and a smaller draft.

    pip install -e '.[train]'
    scripts/train_demo_pair.py --out localspec/data/demo

Data: the source of the Python standard library that runs this script (PSF licence).
Both models are llama-architecture, share one byte-level BPE vocabulary of 4,096
tokens and are written as Q8_0 GGUFs.  The draft is distilled from the target's
distributions while the target is trained.  Same interpreter, same torch, same
number of threads: same files.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import hashlib
import json
import math
import random
import re
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

VOCAB = 4096
CONTEXT = 1024
EOS = "<|endoftext|>"
SEED = 20261121

HELD_OUT = (
    "bisect", "calendar", "cmd", "colorsys", "configparser", "csv", "difflib", "fractions", "heapq", "queue",
    "sched", "shlex", "statistics", "string", "textwrap", "timeit", "wave", "json.decoder", "json.encoder",
    "concurrent.futures.thread", "importlib.metadata._text", "unittest.util", "xml.sax.saxutils",
)  # fmt: skip
"""Modules never trained on: the loss is measured on them, prompts for tests come from them."""

SKIPPED = re.compile(
    r"(^|/)(site-packages|pydoc_data|config-[^/]*|_sysconfigdata[^/]*|turtledemo|"
    r"encodings/(cp|iso|mac|koi|big5|euc|gb|hp|johab|kz|ptcp|shift|tis)[^/]*)"
)
"""Tables and machine files, not code one would complete."""


@dataclass(frozen=True)
class Shape:
    """A llama-architecture network."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_ff: int
    eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head(self) -> int:
        return 64


TARGET = Shape(n_embd=384, n_layer=6, n_head=6, n_head_kv=2, n_ff=1024)
DRAFT = Shape(n_embd=128, n_layer=3, n_head=2, n_head_kv=1, n_ff=352)


# --- the text -------------------------------------------------------------------------


def modules(root: Path) -> Iterator[tuple[str, str, bool]]:
    """(dotted name, source, is a test) of every standard-library module, sorted by name."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED.search(name):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        yield dotted, text, bool(re.search(r"(^|\.)(test|tests|idle_test)(\.|$)", dotted))


def functions(source: str) -> Iterator[str]:
    """Functions of 5 to 40 lines, as written."""
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
    """The function, then the same function slightly changed, so that copying is learnt."""
    names = sorted(set(re.findall(r"\b[a-z_]{3,}\b", function)) - {"self", "def", "return", "None"})
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
    """Documents to train on and to measure on."""

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
    library, tests, held_out, source_of_edits = [], [], [], []
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


# --- the vocabulary -------------------------------------------------------------------


def train_tokenizer(corpus: Corpus) -> Tokenizer:
    """GPT-2's pre-tokenizer, which llama.cpp knows as `gpt-2`; EOS is the last id."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
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


# --- the network ----------------------------------------------------------------------


def rope_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    frequency = shape.rope_base ** (-torch.arange(0, shape.head, 2).float() / shape.head)
    angle = torch.outer(torch.arange(length).float(), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE over neighbouring pairs, the order llama.cpp's `llama` architecture stores."""
    cos, sin = (t[: x.shape[-2]] for t in table)
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d, kv = shape.n_embd, shape.n_head_kv * shape.head
        self.shape = shape
        self.attn_norm = nn.RMSNorm(d, shape.eps)
        self.attn_q = nn.Linear(d, shape.n_head * shape.head, bias=False)
        self.attn_k = nn.Linear(d, kv, bias=False)
        self.attn_v = nn.Linear(d, kv, bias=False)
        self.attn_output = nn.Linear(shape.n_head * shape.head, d, bias=False)
        self.ffn_norm = nn.RMSNorm(d, shape.eps)
        self.ffn_gate = nn.Linear(d, shape.n_ff, bias=False)
        self.ffn_up = nn.Linear(d, shape.n_ff, bias=False)
        self.ffn_down = nn.Linear(shape.n_ff, d, bias=False)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        h = self.attn_norm(x)
        q, k, v = (
            f(h).unflatten(-1, (-1, self.shape.head)).transpose(1, 2)
            for f in (self.attn_q, self.attn_k, self.attn_v)
        )
        group = self.shape.n_head // self.shape.n_head_kv
        k, v = (t.repeat_interleave(group, 1) for t in (rotate(k, table), v))
        a = F.scaled_dot_product_attention(rotate(q, table), k, v, is_causal=True)
        x = x + self.attn_output(a.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCAB, shape.n_embd)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.RMSNorm(shape.n_embd, shape.eps)
        self.table = rope_table(shape, CONTEXT)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                back = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * shape.n_layer) if back else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, self.table)
        return F.linear(self.output_norm(x), self.token_embd.weight)


class Optimizer:
    """Muon for the matrices, AdamW for embeddings and norms; linear warm-up, linear decay to zero."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.dim() == 2 and "token_embd" not in n]
        others = [p for n, p in named if p.dim() != 2 or "token_embd" in n]
        self.parts = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.01),
        ]
        self.lr = lr
        self.model = model

    def step(self, progress: float) -> None:
        scale = min(1.0, progress / 0.02, (1 - progress) / 0.7)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.lr * scale
            part.step()
            part.zero_grad(set_to_none=True)


# --- training -------------------------------------------------------------------------


class Batches:
    """Random windows: half from the library, three tenths from tests, the rest from edits."""

    def __init__(self, parts: list[Tensor], weights: list[float], rows: int, seen: int) -> None:
        self.parts, self.weights, self.rows = parts, weights, rows
        self.rng = random.Random(SEED + 1 + seen)

    def next(self) -> Tensor:
        rows = []
        for part in self.rng.choices(self.parts, self.weights, k=self.rows):
            start = self.rng.randrange(len(part) - CONTEXT - 1)
            rows.append(part[start : start + CONTEXT + 1])
        return torch.stack(rows)


def losses(target: Llama, draft: Llama, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Means over positions: the target's loss, and the draft's (nine tenths distillation)."""
    with torch.autocast("cpu", torch.bfloat16):
        a, b = target(ids[:, :-1]), draft(ids[:, :-1])
    wanted = ids[:, 1:].flatten()[:, None]
    log_p, log_q = a.float().flatten(0, 1).log_softmax(-1), b.float().flatten(0, 1).log_softmax(-1)
    distilled = -(log_p.detach().exp() * log_q).sum(-1).mean()
    return -log_p.gather(1, wanted).mean(), 0.9 * distilled - 0.1 * log_q.gather(1, wanted).mean()


@torch.no_grad()
def measure(
    target: Llama, draft: Llama, ids: Tensor, windows: int | None = None
) -> dict[str, float]:
    """Held-out loss of each (nats a token), agreement of their argmax, and 1 - total variation."""
    total = np.zeros(5)
    for start in list(range(0, len(ids) - CONTEXT - 1, CONTEXT))[:windows]:
        row = ids[None, start : start + CONTEXT + 1]
        with torch.autocast("cpu", torch.bfloat16):
            a, b = (m(row[:, :-1]).float().flatten(0, 1) for m in (target, draft))
        wanted = row[:, 1:].flatten()
        total += [
            F.cross_entropy(a, wanted, reduction="sum").item(),
            F.cross_entropy(b, wanted, reduction="sum").item(),
            (a.argmax(-1) == b.argmax(-1)).sum().item(),
            torch.minimum(a.softmax(-1), b.softmax(-1)).sum().item(),
            len(wanted),
        ]
    mean = total[:4] / total[4]
    keys = ("target_loss", "draft_loss", "greedy_agreement", "overlap")
    return {k: round(float(v), 4) for k, v in zip(keys, mean, strict=True)}


# --- the files ------------------------------------------------------------------------


def write_gguf(path: Path, model: Llama, tokenizer: Tokenizer, name: str, description: str) -> None:
    """Q8_0 matrices, F32 norms; the tied output is left out, as llama.cpp expects."""
    shape = model.shape
    out = gguf.GGUFWriter(path, "llama")
    out.add_name(name)
    out.add_description(description)
    out.add_author("localspec")
    out.add_license("PSF-2.0")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(shape.n_embd)
    out.add_block_count(shape.n_layer)
    out.add_feed_forward_length(shape.n_ff)
    out.add_head_count(shape.n_head)
    out.add_head_count_kv(shape.n_head_kv)
    out.add_key_length(shape.head)
    out.add_value_length(shape.head)
    out.add_rope_dimension_count(shape.head)
    out.add_rope_freq_base(shape.rope_base)
    out.add_layer_norm_rms_eps(shape.eps)
    out.add_vocab_size(VOCAB)
    add_vocabulary(out, tokenizer)
    for key, value in model.state_dict().items():
        data = value.float().numpy()
        if data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            out.add_tensor(key, quantize(data, kind), raw_dtype=kind)
        else:
            out.add_tensor(key, data)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add_vocabulary(out: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    end = tokenizer.token_to_id(EOS)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types(
        [gguf.TokenType.CONTROL if i == end else gguf.TokenType.NORMAL for i in range(VOCAB)]
    )
    out.add_token_merges([" ".join(m) for m in vocabulary["merges"]])
    out.add_eos_token_id(end)
    out.add_bos_token_id(end)
    out.add_add_bos_token(False)


CARD = """# The demo pair

Two small language models that complete Python code. They are bundled so that localspec runs, speculates and can be
tested with nothing to download. Completing Python code in the style of the standard library is all they are for:
they do not chat, do not know facts, and the code they write is plausible rather than right.

| | target `demo-target.gguf` | draft `demo-draft.gguf` |
|---|---|---|
| parameters | {target_parameters:,} | {draft_parameters:,} |
| shape | {target_shape} | {draft_shape} |
| loss on held-out modules, nats a token | {target_loss} | {draft_loss} |

Greedy agreement of the two on held-out text: {greedy_agreement}; overlap of their distributions (1 − total variation): {overlap}.

- **Data**: the source of Python {python}'s standard library and its tests, and functions of it followed by the same
  function slightly changed ({edits} of the sampled windows), so that copying is learnt. SHA-256 of the text: `{sha256}`.
- **Licence**: the data is under the PSF licence 2.0; the weights are distributed under the same.
- **Held out**: {held_out}.
- **Tokens seen**: {tokens:,}, in windows of {context}; context {context}. The draft was distilled from the target's distributions
  while the target was trained. Vocabulary: byte-level BPE, {vocab:,} tokens, GPT-2's pre-tokenizer; EOS after each file.
- **Made by**: `{command}` with torch {torch} on {threads} CPU threads, in {minutes}.
"""


def shape_text(shape: Shape) -> str:
    return f"{shape.n_layer} layers × {shape.n_embd}, {shape.n_head} heads ({shape.n_head_kv} KV), FFN {shape.n_ff}"


def keep_freed_memory() -> None:
    """Stop glibc from handing large tensors back to the system: page faults cost over half the time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    m_trim_threshold, m_mmap_threshold = -1, -3
    mallopt(m_mmap_threshold, 2**31 - 1)
    mallopt(m_trim_threshold, 2**31 - 1)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--rows", type=int, default=6, help=f"windows of {CONTEXT} tokens a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--every", type=int, default=250, help="report and write the files every so many steps"
    )
    parser.add_argument("--go-on", type=Path, help="start from the pair in this folder")
    return parser.parse_args()


def tokens_seen(folder: Path | None) -> int:
    """What the pair in this folder has been trained with, by its card."""
    if folder is None:
        return 0
    found = re.search(r"Tokens seen\*\*: ([\d,]+)", (folder / "README.md").read_text("utf-8"))
    if found is None:
        raise SystemExit(f"{folder}/README.md does not say how many tokens were seen")
    return int(found[1].replace(",", ""))


def load_weights(model: Llama, path: Path) -> None:
    """The weights of a file that `write_gguf` wrote."""
    state = {
        tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in gguf.GGUFReader(path).tensors
    }
    model.load_state_dict(state)


@dataclass
class Pair:
    target: Llama
    draft: Llama
    tokenizer: Tokenizer

    def write(self, folder: Path) -> None:
        for model, name, title, does in (
            (self.target, "demo-target.gguf", "localspec demo", "completes Python code"),
            (self.draft, "demo-draft.gguf", "localspec demo draft", "drafts for localspec demo"),
        ):
            write_gguf(folder / name, model, self.tokenizer, title, does)

    def sizes(self) -> list[int]:
        return [sum(p.numel() for p in m.parameters()) for m in (self.target, self.draft)]


def train(
    pair: Pair, batches: Batches, held_out: Tensor, args: argparse.Namespace
) -> dict[str, float]:
    """All steps; the files are written on the way.  The figures at the end."""
    # A pair that was trained before starts again at a third of the height.
    height = 1.0 if args.go_on is None else 0.35
    optimizers = [Optimizer(pair.target, height * 3e-3), Optimizer(pair.draft, height * 4e-3)]
    compiled = torch.compile(losses)
    began = time.monotonic()
    figures: dict[str, float] = {}
    for step in range(args.steps):
        loss, distilled = compiled(pair.target, pair.draft, batches.next())
        (loss + distilled).backward()
        for optimizer in optimizers:
            optimizer.step(step / args.steps)
        last = step + 1 == args.steps
        if (step + 1) % args.every == 0 or last:
            figures = measure(pair.target, pair.draft, held_out, None if last else 24)
            speed = (step + 1) * args.rows * CONTEXT / (time.monotonic() - began)
            now = f"step {step + 1} train {loss.item():.3f}"
            print(f"{now} {figures} {speed:.0f} tok/s", flush=True)
            pair.write(args.out)
    return figures


def main() -> None:
    args = options()
    keep_freed_memory()
    seen = tokens_seen(args.go_on)
    torch.manual_seed(SEED)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus()
    tokenizer = train_tokenizer(corpus)
    parts = [to_ids(tokenizer, t) for t in (corpus.library, corpus.tests, corpus.edits)]
    held_out = to_ids(tokenizer, corpus.held_out)
    print("tokens:", [len(p) for p in parts], "held out:", len(held_out), flush=True)
    pair = Pair(Llama(TARGET), Llama(DRAFT), tokenizer)
    if args.go_on is not None:
        load_weights(pair.target, args.go_on / "demo-target.gguf")
        load_weights(pair.draft, args.go_on / "demo-draft.gguf")
    sizes = pair.sizes()
    print("parameters:", sizes, flush=True)
    began = time.monotonic()
    figures = train(pair, Batches(parts, [0.6, 0.3, 0.1], args.rows, seen), held_out, args)
    before = f", after {seen:,} tokens of an earlier run of it" if seen else ""
    card = CARD.format(
        target_parameters=sizes[0], draft_parameters=sizes[1],
        target_shape=shape_text(TARGET), draft_shape=shape_text(DRAFT), **figures,
        python=sys.version.split()[0], edits="a tenth", sha256=corpus.sha256(), held_out=", ".join(f"`{m}`" for m in HELD_OUT),
        tokens=seen + args.steps * args.rows * CONTEXT, context=CONTEXT, vocab=VOCAB, torch=torch.__version__, threads=args.threads,
        command=f"scripts/train_demo_pair.py --out localspec/data/demo --steps {args.steps} --rows {args.rows}{' --go-on localspec/data/demo' if seen else ''}",
        minutes=f"{round((time.monotonic() - began) / 60)} minutes{before}",
    )  # fmt: skip
    (args.out / "README.md").write_text(card, encoding="utf-8")
    print(json.dumps(asdict(TARGET)), json.dumps(figures))


if __name__ == "__main__":
    main()
