"""Child process for conversions: quantizes a file, and compares a copy with its source.

`conversion.py` is the other side.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from localspec.extras.convert.child_requests import (
    CompareRequest,
    Comparison,
    QuantizedFile,
    QuantizeRequest,
)
from localspec.llama.context import LlamaContext
from localspec.llama.library import LOG, C
from localspec.machine import background_process
from localspec.machine.background_process import ReportProgress, Request
from localspec.machine.cpu_and_ram import OtherCpuLoad, count_free_cpus, read_cpu_cores
from localspec.machine.llama_params import ModelRole
from localspec.protocol.json_values import from_json, to_plain
from localspec.protocol.wire import ContextSettings

_ON_CPU = ContextSettings(n_gpu_layers=0, n_ctx=512)
_CHUNK = 32  # The copy reads so many tokens of the source at once.
_MAX_ANSWER = 200  # The most tokens of one answer that are compared.
_N_TIMED = 8  # Tokens of an answer that the copy writes itself, to be timed.
_PROMPT_LENGTH = 256
_TENSOR_DONE = re.compile(r"^\[ *(\d+)/ *(\d+)\]")
"""How llama.cpp logs a tensor of the copy: `[  12/ 290] blk.1.attn_q.weight …`."""

Row = NDArray[np.float32]
"""Logits after one token."""


def quantize(request: QuantizeRequest, report: ReportProgress) -> QuantizedFile:
    """Write a copy whose weights have the requested type.

    Follows llama.cpp's tools/quantize. Small or odd tensors keep or get other types, as
    there.
    """
    params = C.llama_model_quantize_default_params()
    params.ftype = request.file_type
    params.allow_requantize = True
    params.nthread = read_cpu_cores().logical
    overrides = (C.llama_model_kv_override * 2)()  # The last one is empty: the end.
    overrides[0].tag = C.LLAMA_KV_OVERRIDE_TYPE_STR
    overrides[0].key = b"localspec.converted_from"
    overrides[0].value.val_str = request.origin.encode()[:127]
    params.kv_overrides = overrides
    reason = ""

    def on_log(_level: int, raw: bytes, _: Any) -> None:
        nonlocal reason
        text = raw.decode("utf-8", "replace")
        match = _TENSOR_DONE.match(text)
        if match:
            n_done = int(match[1])
            n_tensors = int(match[2])
            report(n_done / max(1, n_tensors))
        reason = text.partition("failed to quantize: ")[2].strip(" !.\n") or reason

    callback = C.llama_log_callback(on_log)
    C.llama_log_set(callback, None)
    try:
        code = C.llama_model_quantize(
            os.fsencode(request.source),
            os.fsencode(request.out),
            ctypes.byref(params),
        )
    finally:
        C.llama_log_set(LOG.callback, None)
    if code != 0:
        raise ValueError(f"llama.cpp cannot convert it: {reason or f'code {code}'}.")
    handle = os.open(request.out, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return QuantizedFile(os.path.getsize(request.out))


class _WriteTimes(Struct):
    """Seconds that source and copy took for each token that they wrote."""

    source: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)


def compare(request: CompareRequest, report: ReportProgress) -> Comparison:
    """Let the source continue the texts greedily, and the copy read the same tokens."""
    role = ModelRole(_ON_CPU, _CHUNK, 0, limit_to_trained_ctx=True)
    load = OtherCpuLoad(os.getpid())
    load.start()
    with (
        closing(LlamaContext(Path(request.source), role)) as source,
        closing(LlamaContext(Path(request.copy), role)) as copy,
    ):
        n_compared = 0
        n_same = 0
        divergences: list[float] = []
        times = _WriteTimes()
        per_text = min(_MAX_ANSWER, max(1, request.n_tokens // len(request.texts)))
        n_threads = source.n_threads
        for text in request.texts:
            n = min(n_threads, count_free_cpus(load.read()))
            source.set_n_threads(n, n)
            copy.set_n_threads(n, n)
            rows = _continue_text(source, copy, text, n_tokens=per_text, times=times)
            for source_row, copy_row in rows:
                n_compared += 1
                if copy_row.argmax() == source_row.argmax():
                    n_same += 1
                divergences.append(_divergence(source_row, copy_row))
            report(min(1.0, n_compared / request.n_tokens))
            if n_compared >= request.n_tokens:
                break
        return Comparison(
            tokens=n_compared,
            same=n_same / n_compared,
            divergence=float(np.mean(divergences)),
            source_ms=median(times.source) * 1e3,
            copy_ms=median(times.copy) * 1e3,
            source_read_ms=_time_reading(source),
            copy_read_ms=_time_reading(copy),
        )


def _continue_text(
    source: LlamaContext,
    copy: LlamaContext,
    text: str,
    n_tokens: int,
    times: _WriteTimes,
) -> Iterator[tuple[Row, Row]]:
    """Rows of logits of both after each token that `source` continues the text with.

    At most `n_tokens` pairs of rows, fewer if the text ends. The copy reads the tokens
    in chunks, so it is timed at the end, with tokens of its own: right after the source,
    when the machine is as busy.
    """
    prompt = source.vocabulary.tokenize(text)[-_PROMPT_LENGTH:]
    for model in (source, copy):
        model.truncate(0)
        if len(prompt) > 1:
            model.decode(prompt[:-1], 0)
    last = prompt[-1]
    chunk: list[int] = []  # Tokens that the source has read since the copy's last pass.
    rows: list[Row] = []  # The source's row after each of them.
    for i in range(n_tokens):
        began = time.perf_counter()
        row = np.array(source.decode([last], 1)[0])
        times.source.append(time.perf_counter() - began)
        chunk.append(last)
        rows.append(row)
        last = int(row.argmax())
        ends = source.vocabulary.is_eog(last) or i == n_tokens - 1
        if len(chunk) == _CHUNK or ends:
            yield from zip(rows, copy.decode(chunk, len(chunk)), strict=True)
            chunk = []
            rows = []
        if ends:
            break
    for _ in range(_N_TIMED):
        began = time.perf_counter()
        copy.decode([last], 1)
        times.copy.append(time.perf_counter() - began)


def _divergence(source_row: Row, copy_row: Row) -> float:
    """The Kullback-Leibler divergence of the copy's distribution, in nats."""
    log_p = _log_softmax(source_row)
    log_q = _log_softmax(copy_row)
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def _log_softmax(row: Row) -> NDArray[np.float64]:
    shifted = row.astype(np.float64) - row.max()
    log_probs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return log_probs


def _time_reading(model: LlamaContext) -> float:
    """Milliseconds of a token of a prompt."""
    times: list[float] = []
    for _ in range(3):
        model.truncate(0)
        began = time.perf_counter()
        model.decode([1] * _PROMPT_LENGTH, 0)
        model.decode([1], 1)  # waits for the pass
        times.append(time.perf_counter() - began)
    return min(times) * 1e3 / _PROMPT_LENGTH


def answer(body: Request, report: ReportProgress) -> Any:
    """The answer to one request, as values of JSON."""
    if body["op"] == "quantize":
        return to_plain(quantize(from_json(QuantizeRequest, body), report))
    return to_plain(compare(from_json(CompareRequest, body), report))


if __name__ == "__main__":
    background_process.serve(answer)
