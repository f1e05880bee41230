"""Child process for conversions: times weight types, quantises a file, compares a copy
with it.

JSON requests on standard input; for each, on standard output, JSON lines with
`progress` (0 to 1), then one with `result` or `failed`. `machine/conversion_process.py`
is the other side.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from localspec import child_process
from localspec.errors import LocalspecError
from localspec.llama import library
from localspec.llama.context import LlamaContext
from localspec.llama.library import LOG, C
from localspec.machine import llama_params
from localspec.machine.cpu_and_ram import OtherCpuLoad, count_free_cpus, read_cpu_cores
from localspec.machine.ggml import GgmlLibrary
from localspec.machine.llama_params import ModelRole
from localspec.models.gguf import parser, writer
from localspec.protocol.wire import ContextSettings

_Report = Callable[[float], None]
_WIDTHS = (1, 2, 4, 8, 256)
_ROUNDS = 3
_PASSES = {1: 7, 256: 1}  # Of a width, one after the other in a round; 3 of the others.
_LAYERS, _WIDTH, _FFN_WIDTH, _HEADS, _KV_HEADS = 2, 2048, 5632, 32, 8
"""A layer of a model of 1 B: two of them are 92 M weights, more than a CPU's cache
holds.
"""
_ON_CPU = ContextSettings(n_gpu_layers=0, n_ctx=512)
_CHUNK = 32  # Tokens that the copy reads at once; it then writes none.
_MAX_ANSWER = 200  # Tokens of an answer that the copy is compared on.
_LOW_PRIORITY = 10  # On Unix, of 19.


def time_type(type_number: int) -> dict[str, Any]:
    """Milliseconds of a pass by width, of two layers with weights of one type, and the
    share of the CPUs that other programs used meanwhile.

    The weights are one random row again and again: the time does not depend on them.
    """
    load = OtherCpuLoad(os.getpid(), os.getppid())
    load.start()
    with tempfile.TemporaryDirectory(prefix="localspec-types-") as folder:
        path = Path(folder) / "layers.gguf"
        _write_layers(path, type_number)
        given = llama_params.model_params(C, _ON_CPU)
        model = C.llama_model_load_from_file(os.fsencode(path), given.params)
        if not model:
            raise library.load_error(path)
        params = C.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.op_offload = False  # else a GPU computes the wide passes
        params.n_threads = params.n_threads_batch = read_cpu_cores().thread_counts()[0]
        context = C.llama_init_from_model(model, params)
        try:
            if not context:
                raise library.context_error(path)
            return {"pass_ms": _time_widths(context), "other_load": load.read() or 0.0}
        finally:
            C.llama_free(context)
            C.llama_model_free(model)


def _time_widths(context: Any) -> dict[int, float]:
    memory, batch = C.llama_get_memory(context), C.llama_batch_init(256, 0, 1)
    times: dict[int, list[float]] = {width: [] for width in _WIDTHS}
    for width in _WIDTHS * _ROUNDS:
        batch.n_tokens = width
        for i in range(width):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = 1, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i == width - 1
        passes = []
        for _ in range(_PASSES.get(width, 3)):
            C.llama_memory_clear(memory, True)
            began = time.perf_counter()
            if (code := C.llama_decode(context, batch)) != 0:
                raise library.decode_error(code)
            C.llama_synchronize(context)
            passes.append((time.perf_counter() - began) * 1e3)
        # the first builds the graph that the others reuse
        times[width] += passes[1:] or passes
    C.llama_batch_free(batch)
    return {width: round(median(ms), 4) for width, ms in times.items()}


def _write_layers(path: Path, type_number: int) -> None:
    kv_width = _WIDTH * _KV_HEADS // _HEADS
    shapes = {"token_embd.weight": (_WIDTH, 32), "output_norm.weight": (_WIDTH,)}
    for il in range(_LAYERS):
        layer = {
            "attn_norm": (_WIDTH,),
            "attn_q": (_WIDTH, _WIDTH),
            "attn_k": (_WIDTH, kv_width),
            "attn_v": (_WIDTH, kv_width),
            "attn_output": (_WIDTH, _WIDTH),
            "ffn_norm": (_WIDTH,),
            "ffn_gate": (_WIDTH, _FFN_WIDTH),
            "ffn_up": (_WIDTH, _FFN_WIDTH),
            "ffn_down": (_FFN_WIDTH, _WIDTH),
        }
        shapes |= {f"blk.{il}.{name}.weight": shape for name, shape in layer.items()}
    tensors, data, at = list[parser.TensorInfo](), list[bytes](), 0
    for name, shape in shapes.items():
        is_vector = len(shape) == 1
        number = 0 if is_vector or name.startswith("token") else type_number
        rows = _quantize_row(number, shape[0]) * (1 if is_vector else shape[1])
        tensors.append(parser.TensorInfo(name, shape, number, at, len(rows)))
        data.append(rows + bytes(-len(rows) % 32))
        at += len(data[-1])
    keys: dict[str, parser.Value] = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": _LAYERS,
        "llama.feed_forward_length": _FFN_WIDTH,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 32,
        "tokenizer.ggml.model": "none",
    }
    entries = [writer.pack_entry(key, value) for key, value in keys.items()]
    with path.open("wb") as file:
        file.write(writer.serialize(entries, tensors, 32))
        file.writelines(data)


def _quantize_row(type_number: int, width: int) -> bytes:
    row = np.random.default_rng(width).standard_normal(width).astype(np.float32) / 32
    name, elements, n_bytes = parser.GGML_TYPES[type_number]
    if name == "F32":
        return row.tobytes()
    out = ctypes.create_string_buffer(width // elements * n_bytes)
    GgmlLibrary(C._lib).quantize_chunk(
        type_number, row.ctypes.data, out, 0, 1, width, None
    )
    return out.raw


def quantize(
    source: str, out: str, file_type: int, origin: str, report: _Report
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
    source: str, copy: str, texts: Sequence[str], n_tokens: int, report: _Report
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


def run(request: Mapping[str, Any], report: _Report) -> Any:
    arguments = {name: value for name, value in request.items() if name != "op"}
    if request["op"] == "time":
        return time_type(**arguments)
    if request["op"] == "quantize":
        return quantize(**arguments, report=report)
    return compare(**arguments, report=report)


def _lower_priority() -> None:
    """Other programs come first.

    Linux may weigh sessions (autogroup), whatever their processes.
    """
    import psutil  # noqa: PLC0415  as in cpu_and_ram.py

    with suppress(psutil.Error, OSError):
        psutil.Process().nice(
            getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", _LOW_PRIORITY)
        )
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LOW_PRIORITY), encoding="ascii")


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    out = child_process.take_over_stdout()
    _lower_priority()

    def send(**body: Any) -> None:
        os.write(out, json.dumps(body).encode() + b"\n")

    for line in sys.stdin:
        try:
            send(result=run(json.loads(line), lambda share: send(progress=share)))
        except LocalspecError as error:
            send(failed=error.message)
        except (OSError, ValueError, LookupError) as error:
            send(failed=str(error))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
