#!/usr/bin/env python3
"""Host time per round: everything outside llama_decode, by vocabulary size and mode.

    .venv/bin/python scripts/bench_loop.py [--vocab 4096 32768 131072] [--rounds 300] [--parts]
                                           [--probabilities]

A tiny random model of each vocabulary size drafts for itself, so almost every draft token is
accepted and every row is verified: the most expensive case. Rows = draft length + 1 = 5.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from localspec.engine import drafters, speculative_loop
from localspec.engine.drafters import draft_sampler
from localspec.engine.llama import LlamaContext
from localspec.engine.output_processor import OutputProcessor
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.speculative_loop import GenerationJob, speculative_decode
from localspec.engine.token_probabilities import score_tokens
from localspec.engine.verifiers import GumbelCoupledVerifier, make_verifier
from localspec.protocol.events import Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, SamplingParams, VerifyMode

DRAFT_LENGTH = 4
WIDTH = 64
MODES: dict[str, tuple[VerifyMode, SamplingParams]] = {
    "greedy": ("coupled", SamplingParams(temperature=0)),
    "coupled, top-k 40": ("coupled", SamplingParams(seed=7)),
    "rejection, top-k 40": ("rejection", SamplingParams(seed=7)),
    "coupled, whole vocabulary": ("coupled", SamplingParams(top_k=0, top_p=1, min_p=0, seed=7)),
}


def write_model(path: Path, n_vocab: int) -> None:
    """One llama layer with random weights and a byte vocabulary padded to n_vocab."""
    rng = np.random.default_rng(n_vocab)
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(1)
    out.add_context_length(4096)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(WIDTH)
    out.add_head_count(2)
    out.add_head_count_kv(2)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model("llama")
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256))]
    tokens += [f"t{i}".encode() for i in range(n_vocab - len(tokens))]
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * n_vocab)
    out.add_token_types([2, 3, 3] + [6] * 256 + [1] * (n_vocab - 259))
    shapes = {"token_embd": (n_vocab, WIDTH), "output": (n_vocab, WIDTH), "output_norm": (WIDTH,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = (WIDTH, WIDTH)
    shapes |= {"blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,)}
    for name, shape in shapes.items():
        data = rng.standard_normal(shape).astype(np.float32) if len(shape) == 2 else np.ones(shape)
        out.add_tensor(f"{name}.weight", data.astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def host_times(
    models: tuple[LlamaContext, LlamaContext], mode: str, rounds: int, probabilities: bool
) -> list[float]:
    """Milliseconds per round outside llama_decode, text and statistics included."""
    verify, sampling = MODES[mode]
    target, draft = (PrefixCache(model) for model in models)
    vocabulary = models[0].vocabulary
    verifier = make_verifier(verify, sampling.seed)
    prompt = [1, *range(300, 340)]
    inputs = drafters.DrafterInputs(
        draft,
        verifier,
        sampling,
        len(prompt),
        vocabulary.n_tokens,
        lambda _: False,
        keep_logits=probabilities,
    )
    tokens = rounds * (DRAFT_LENGTH + 1)
    job = GenerationJob(prompt, sampling, tokens, DRAFT_LENGTH, lambda _: False, lambda: False)
    job = replace(job, score_tokens=score_tokens if probabilities else None)
    steps = speculative_decode(target, drafters.make("model", inputs), verifier, job)
    times: list[float] = []
    began, busy = time.perf_counter(), sum(m.decode_seconds for m in models)
    for event in OutputProcessor(GenerateCommand("", sampling), vocabulary, "").process(steps):
        now, used = time.perf_counter(), sum(m.decode_seconds for m in models)
        if isinstance(event, Round) and event.drafted == DRAFT_LENGTH:
            times.append((now - began - (used - busy)) * 1e3)
        began, busy = now, used
    for model in models:
        model.truncate(0)
    return times


PARTS: dict[str, tuple[object, str]] = {
    "draft's distributions": (draft_sampler, "compute_distribution"),
    "target's distributions": (speculative_loop, "compute_distribution"),
    "draws": (GumbelCoupledVerifier, "sample_draft_token"),
    "batches": (LlamaContext, "decode"),
    "truncation": (LlamaContext, "truncate"),
    "text and events": (OutputProcessor, "_to_round"),
}
"""The timed functions; `batches` is reported without the time in llama_decode."""


@contextmanager
def timed_parts(spent: dict[str, float]) -> Iterator[None]:
    """Adds the seconds spent in each of PARTS to `spent`."""

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            began = time.perf_counter()
            result = function(*given)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
            return result

        return run

    real = {name: getattr(*place) for name, place in PARTS.items()}
    for name, place in PARTS.items():
        setattr(*place, timed(name, real[name]))
    try:
        yield
    finally:
        for name, place in PARTS.items():
            setattr(*place, real[name])


def print_parts(
    models: tuple[LlamaContext, LlamaContext], mode: str, rounds: int, probabilities: bool
) -> None:
    """Prints the mean milliseconds per round of each part."""
    spent: dict[str, float] = {}
    busy = sum(model.decode_seconds for model in models)
    with timed_parts(spent):
        n = len(host_times(models, mode, rounds, probabilities))
    spent["batches"] -= sum(model.decode_seconds for model in models) - busy
    print("           " + "  ".join(f"{k} {v / n * 1e3:.3f}" for k, v in spent.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, nargs="+", default=[4096, 32768, 131072])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--parts", action="store_true", help="show where the time goes")
    parser.add_argument("--probabilities", action="store_true", help="compute token probabilities")
    args = parser.parse_args()
    print(f"host ms per round, {DRAFT_LENGTH + 1} rows: median (90 %)")
    settings = replace(ContextSettings(), n_ctx=4096, n_threads=1, flash_attn="on")
    for n_vocab in args.vocab:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            write_model(path, n_vocab)
            target = LlamaContext(path, settings, outputs=DRAFT_LENGTH + 1, rollback=DRAFT_LENGTH)
            draft = LlamaContext(path, settings, outputs=1, rollback=DRAFT_LENGTH)
            for mode in MODES:
                times = host_times((target, draft), mode, args.rounds, args.probabilities)
                decile = statistics.quantiles(times, n=10)[-1]
                print(f"  {n_vocab:>7,}  {mode:<26} {statistics.median(times):.3f} ({decile:.3f})")
                if args.parts:
                    print_parts((target, draft), mode, args.rounds, args.probabilities)
            target.close()
            draft.close()


if __name__ == "__main__":
    main()
