"""Child process that times weight types on this CPU: see machine/type_speeds.py."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from localspec.llama import library
from localspec.llama.library import C
from localspec.machine import background_process, llama_params
from localspec.machine.background_process import ReportProgress, Request
from localspec.machine.cpu_and_ram import OtherCpuLoad, choose_n_threads
from localspec.machine.ggml import GgmlLibrary
from localspec.models.gguf import parser, writer
from localspec.protocol.wire import ContextSettings

_WIDTHS = (1, 2, 4, 8, 256)
_ROUNDS = 3
_PASSES = {1: 7, 256: 1}  # Of a width, one after the other in a round; 3 of the others.
_LAYERS = 2
_WIDTH = 2048
_FFN_WIDTH = 5632
_HEADS = 32
_KV_HEADS = 8
"""A layer of a model of 1 B: two of them are 92 M weights, more than a CPU's cache
holds.
"""
_ON_CPU = ContextSettings(n_gpu_layers=0, n_ctx=512)


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
        params.n_threads = params.n_threads_batch = choose_n_threads()
        context = C.llama_init_from_model(model, params)
        try:
            if not context:
                raise library.context_error(path)
            return {"pass_ms": _time_widths(context), "other_load": load.read() or 0.0}
        finally:
            C.llama_free(context)
            C.llama_model_free(model)


def _time_widths(context: Any) -> dict[int, float]:
    memory = C.llama_get_memory(context)
    batch = C.llama_batch_init(256, 0, 1)
    times: dict[int, list[float]] = {width: [] for width in _WIDTHS}
    for width in _WIDTHS * _ROUNDS:
        batch.n_tokens = width
        for i in range(width):
            batch.token[i] = 1
            batch.pos[i] = i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == width - 1
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
    tensors = list[parser.TensorInfo]()
    data = list[bytes]()
    at = 0
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


def answer(request: Request, _: ReportProgress) -> dict[str, Any]:
    return time_type(request["type_number"])


if __name__ == "__main__":
    background_process.serve(answer)
