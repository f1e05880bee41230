"""Child process for conversions: quantises a file, compares a copy with it.

`conversion.py` is the other side.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from localspec.llama.context import LlamaContext
from localspec.llama.library import LOG, C
from localspec.machine import background_process
from localspec.machine.background_process import ReportProgress, Request
from localspec.machine.cpu_and_ram import OtherCpuLoad, count_free_cpus, read_cpu_cores
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import ContextSettings

_ON_CPU = ContextSettings(n_gpu_layers=0, n_ctx=512)
_CHUNK = 32  # Tokens that the copy reads at once; it then writes none.
_MAX_ANSWER = 200  # Tokens of an answer that the copy is compared on.


def quantize(
    source: str, out: str, file_type: int, origin: str, report: ReportProgress
) -> dict[str, Any]:
    """Write a copy whose weights are of `file_type` (llama_ftype); `origin` goes into
    its header.

    Follows llama.cpp's tools/quantize. Small or odd tensors keep or get other types, as
    there.
    """
    params = C.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = file_type, True
    params.nthread = read_cpu_cores().logical
    overrides = (C.llama_model_kv_override * 2)()
    overrides[0].tag, overrides[0].key = (
        C.LLAMA_KV_OVERRIDE_TYPE_STR,
        b"localspec.converted_from",
    )
    overrides[0].value.val_str = origin.encode()[:127]
    params.kv_overrides = overrides
    step, reason = re.compile(r"^\[ *(\d+)/ *(\d+)\]"), ""

    def on_log(_level: int, raw: bytes, _: Any) -> None:
        nonlocal reason
        text = raw.decode("utf-8", "replace")
        if match := step.match(text):
            report(int(match[1]) / max(1, int(match[2])))
        reason = text.partition("failed to quantize: ")[2].strip(" !.\n") or reason

    callback = C.llama_log_callback(on_log)
    C.llama_log_set(callback, None)
    try:
        code = C.llama_model_quantize(
            os.fsencode(source), os.fsencode(out), ctypes.byref(params)
        )
    finally:
        C.llama_log_set(LOG._callback, None)
    if code != 0:
        raise ValueError(f"llama.cpp cannot convert it: {reason or f'code {code}'}.")
    handle = os.open(out, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return {"bytes": os.path.getsize(out)}


def compare(
    source: str, copy: str, texts: Sequence[str], n_tokens: int, report: ReportProgress
) -> dict[str, float]:
    """Let the source continue the texts greedily and the copy read the same tokens.

    Returns the share of positions at which both choose the same token, the mean
    Kullback-Leibler divergence of the copy's distribution from the source's in nats,
    and milliseconds for a token written and for a token of a prompt read, of both.
    """
    role = ModelRole(_ON_CPU, _CHUNK, 0, limit_to_trained_ctx=True)
    load = OtherCpuLoad(os.getpid())
    load.start()
    with (
        closing(LlamaContext(Path(source), role)) as first,
        closing(LlamaContext(Path(copy), role)) as second,
    ):
        same, divergences = list[bool](), list[float]()
        times: tuple[list[float], list[float]] = ([], [])
        per_text = min(_MAX_ANSWER, max(1, n_tokens // len(texts)))
        n_threads = first.n_threads
        for text in texts:
            n = min(n_threads, count_free_cpus(load.read()))
            first.set_n_threads(n, n)
            second.set_n_threads(n, n)
            for theirs, ours in _continue_text(first, second, text, per_text, times):
                same.append(int(ours.argmax()) == int(theirs.argmax()))
                divergences.append(_divergence(theirs, ours))
            report(min(1.0, len(same) / n_tokens))
            if len(same) >= n_tokens:
                break
        return {
            "tokens": len(same),
            "same": sum(same) / len(same),
            "divergence": float(np.mean(divergences)),
            "source_ms": median(times[0]) * 1e3,
            "copy_ms": median(times[1]) * 1e3,
            "source_read_ms": _time_reading(first),
            "copy_read_ms": _time_reading(second),
        }


def _continue_text(
    first: LlamaContext,
    second: LlamaContext,
    text: str,
    n_tokens: int,
    times: tuple[list[float], list[float]],
) -> Iterator[tuple[Any, Any]]:
    """Rows of logits of both after each token that `first` continues the text with.

    The seconds that each takes for one token are added to `times`.
    """
    tokens = first.vocabulary.tokenize(text)[-256:]
    for model in (first, second):
        model.truncate(0)
        if len(tokens) > 1:
            model.decode(tokens[:-1], 0)
    last, rows, fed = tokens[-1], list[Any](), list[int]()
    for left in reversed(range(n_tokens)):
        began = time.perf_counter()
        rows.append(np.array(first.decode([last], 1)[0]))
        times[0].append(time.perf_counter() - began)
        fed.append(last)
        last = int(rows[-1].argmax())
        ends = first.vocabulary.is_eog(last) or not left
        if len(fed) == _CHUNK or ends:
            yield from zip(rows, second.decode(fed, len(fed)), strict=True)
            rows, fed = [], []
        if ends:
            break
    for _ in range(8):  # beside the source's, so that both meet the same machine
        began = time.perf_counter()
        second.decode([last], 1)
        times[1].append(time.perf_counter() - began)


def _divergence(of: Any, other: Any) -> float:
    p, q = (row.astype(np.float64) - row.max() for row in (of, other))
    log_p, log_q = p - np.log(np.exp(p).sum()), q - np.log(np.exp(q).sum())
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def _time_reading(model: LlamaContext) -> float:
    """Milliseconds a token, of a prompt of 256."""
    times = []
    for _ in range(3):
        model.truncate(0)
        began = time.perf_counter()
        model.decode([1] * 256, 0)
        model.decode([1], 1)  # waits for the pass
        times.append(time.perf_counter() - began)
    return min(times) * 1e3 / 256


def answer(request: Request, report: ReportProgress) -> Any:
    arguments = dict(request)
    if arguments.pop("op") == "quantize":
        return quantize(**arguments, report=report)
    return compare(**arguments, report=report)


if __name__ == "__main__":
    background_process.serve(answer)
