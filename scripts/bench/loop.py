"""Host time per round: everything outside llama_decode, by vocabulary size and mode.

    bench.py loop [--vocab 4096 49152 131072 262144] [--rounds 300] [--target MODEL.gguf]

CPU time of the engine's thread, from one event written to the next; another program
slows it only a little. "plain" drafts nothing. In "5 rows" a tiny random model of each
vocabulary size drafts for itself, so almost every draft token is accepted and every row
is verified: the most expensive case. `--target` measures a real model, plain: its
passes leave the caches as cold as in use.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from localspec.engine.output_processor import OutputProcessor
from localspec.llama.context import LlamaContext
from localspec.llama.library import C
from localspec.machine.llama_params import ModelRole
from localspec.protocol.events import Round
from localspec.protocol.wire import (
    ContextSettings,
    SamplingParams,
    VerifyMode,
    encode_output,
)
from localspec.spec import drafters
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.prepared_answer import PreparedAnswer, TokenPart
from localspec.spec.speculative_loop import Drafting, speculative_decode
from localspec.spec.verifiers import make_verifier
from tests.support import tinygguf

DRAFT_LENGTH = 4
WIDTH = 64  # Of the tiny models.
MODES: dict[str, tuple[VerifyMode, SamplingParams]] = {
    "greedy": ("coupled", SamplingParams(temperature=0)),
    "coupled, top-k 40": ("coupled", SamplingParams(seed=7)),
    "rejection, top-k 40": ("rejection", SamplingParams(seed=7)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--vocab", type=int, nargs="*", default=[4096, 49152, 131072, 262144])
    add("--rounds", type=int, default=300)
    add("--target", type=Path, metavar="GGUF", help="plain, of this model")


def main(args: argparse.Namespace) -> None:
    print("host ms per round: median (90 %)")
    settings = ContextSettings(n_ctx=4096, n_threads=1, flash_attn="on")
    if args.target:
        role = ModelRole(settings, n_outputs_max=1, n_rs_seq=0)
        target = LlamaContext(args.target, role)
        print_times([target], args, target.n_vocab)
        return
    target_role = ModelRole(
        settings, n_outputs_max=DRAFT_LENGTH + 1, n_rs_seq=DRAFT_LENGTH
    )
    draft_role = ModelRole(settings, n_outputs_max=1, n_rs_seq=DRAFT_LENGTH)
    for n_vocab in args.vocab:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            write_model(path, n_vocab)
            target = LlamaContext(path, target_role)
            draft = LlamaContext(path, draft_role)
            print_times([target, draft], args, n_vocab)
            target.close()
            draft.close()


def print_times(
    models: Sequence[LlamaContext], args: argparse.Namespace, n_vocab: int
) -> None:
    cases = {"plain": models[:1]}
    if len(models) > 1:
        cases[f"{DRAFT_LENGTH + 1} rows"] = models
    for mode in MODES:
        for name, used in cases.items():
            times = host_times(used, mode, args.rounds)
            p90 = statistics.quantiles(times, n=10)[-1]
            print(
                f"  {n_vocab:>7,}  {mode:<26} {name:<7} "
                f"{statistics.median(times):.3f} ({p90:.3f})",
                flush=True,
            )


def host_times(models: Sequence[LlamaContext], mode: str, rounds: int) -> list[float]:
    """Milliseconds per round outside llama_decode, text and events included.

    Without a second model nothing is drafted.
    """
    verify, sampling = MODES[mode]
    target, *drafts = map(PrefixCache, models)
    kind = "none"
    length = 0
    draft = None
    if drafts:
        kind = "model"
        length = DRAFT_LENGTH
        draft = drafts[0]
    vocabulary = models[0].vocabulary
    verifier = make_verifier(verify, sampling.seed)
    prompt = [1, *range(300, 340)]
    inputs = drafters.DrafterInputs(
        draft_cache=draft,
        verifier=verifier,
        sampling=sampling,
        prompt_length=len(prompt),
        n_vocab=vocabulary.n_tokens,
        is_eog=lambda _: False,
    )
    n_tokens = rounds * (length + 1)
    answer = PreparedAnswer(
        parts=(TokenPart(prompt),),
        sampling=sampling,
        max_tokens=n_tokens,
        verifier=verifier,
        is_eog=lambda _: False,
        is_cancelled=lambda: False,
    )
    drafting = Drafting(drafters.make(kind, inputs), length)
    steps = speculative_decode(target, answer, drafting)
    events = OutputProcessor(answer, drafting, vocabulary).process(steps)
    times: list[float] = []
    with (
        timed_decode() as decode_clock,
        open(os.devnull, "wb", buffering=0) as output,
    ):
        began = time.thread_time()
        decoded_before = 0.0
        for event in events:
            output.write(encode_output(1, event))
            now = time.thread_time()
            if isinstance(event, Round) and event.drafted == length:
                in_decode = decode_clock.seconds - decoded_before
                times.append((now - began - in_decode) * 1e3)
            began = now
            decoded_before = decode_clock.seconds
    for model in models:
        model.truncate(0)
    return times


@dataclass
class DecodeClock:
    """CPU seconds of this thread inside llama_decode."""

    seconds: float = 0.0


@contextmanager
def timed_decode() -> Iterator[DecodeClock]:
    clock = DecodeClock()
    decode = C.llama_decode

    def run(*given: Any) -> int:
        began = time.thread_time()
        result: int = decode(*given)
        clock.seconds += time.thread_time() - began
        return result

    with patch.object(C, "llama_decode", run):
        yield clock


def write_model(path: Path, n_vocab: int) -> None:
    """One llama layer with random weights and a byte vocabulary padded to n_vocab."""
    shape = tinygguf.Shape(n_embd=WIDTH, n_layer=1, n_head=2, n_ff=WIDTH, n_ctx=4096)
    n_bytes = len(tinygguf.Model("llama", words=()).vocabulary())
    words = [f"t{i}" for i in range(n_vocab - n_bytes)]
    tinygguf.llama(n_vocab, shape=shape, words=words).write(path)
