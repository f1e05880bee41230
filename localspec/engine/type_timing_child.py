"""Child process that times weight types on this CPU: see machine/type_speeds.py."""

from __future__ import annotations

import ctypes
import os
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

_PASS_WIDTHS = (1, 2, 4, 8, 256)
_ROUNDS = 3
_N_PASSES = {1: 7, 2: 3, 4: 3, 8: 3, 256: 1}
"""How many passes of each width follow each other in a round."""

# The layers of a model of 1 B: two of them are 92 M weights, more than a CPU's cache
# holds.
_N_LAYERS = 2
_N_EMBD = 2048
_N_FF = 5632
_N_HEAD = 32
_N_HEAD_KV = 8
_N_VOCAB = 32
_N_CTX = 512
_ON_CPU = ContextSettings(n_gpu_layers=0, n_ctx=_N_CTX)
_ALIGNMENT = 32
_F32 = 0  # Its number in ggml.


def time_type(type_number: int, path: Path) -> dict[str, Any]:
    """Time passes of two layers with weights of one type, which `path` then holds.

    Returns milliseconds by width (`pass_ms`), and the share of the CPUs that other
    programs used meanwhile (`other_load`). The weights are one random row again and
    again: the time does not depend on them.
    """
    load = OtherCpuLoad(os.getpid(), os.getppid())
    load.start()
    _write_layers(path, type_number)
    model_params = llama_params.model_params(C, _ON_CPU)
    model = C.llama_model_load_from_file(os.fsencode(path), model_params.params)
    if not model:
        raise library.load_error(path)
    params = C.llama_context_default_params()
    params.n_ctx = _N_CTX
    params.n_batch = _N_CTX
    params.n_ubatch = _N_CTX
    params.op_offload = False  # Otherwise a GPU computes the wide passes.
    params.n_threads = choose_n_threads()
    params.n_threads_batch = params.n_threads
    context = C.llama_init_from_model(model, params)
    try:
        if not context:
            raise library.context_error(path)
        return {"pass_ms": _time_widths(context), "other_load": load.read() or 0.0}
    finally:
        C.llama_free(context)
        C.llama_model_free(model)


def _time_widths(context: Any) -> dict[int, float]:
    batch = C.llama_batch_init(max(_PASS_WIDTHS), 0, 1)
    times: dict[int, list[float]] = {width: [] for width in _PASS_WIDTHS}
    try:
        for _ in range(_ROUNDS):
            for width in _PASS_WIDTHS:
                times[width] += _time_passes(context, batch, width)
    finally:
        C.llama_batch_free(batch)
    return {width: round(median(ms), 4) for width, ms in times.items()}


def _time_passes(context: Any, batch: Any, width: int) -> list[float]:
    """Milliseconds of some passes of one width, one after the other."""
    batch.n_tokens = width
    for i in range(width):
        batch.token[i] = 1
        batch.pos[i] = i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i == width - 1
    memory = C.llama_get_memory(context)
    times: list[float] = []
    for _ in range(_N_PASSES[width]):
        C.llama_memory_clear(memory, True)
        began = time.perf_counter()
        code = C.llama_decode(context, batch)
        if code != 0:
            raise library.decode_error(code)
        C.llama_synchronize(context)
        times.append((time.perf_counter() - began) * 1e3)
    # The first pass builds the graph, which the others reuse.
    return times[1:] or times


def _write_layers(path: Path, type_number: int) -> None:
    """Write a model's file with two layers; norms and embeddings are F32."""
    tensors: list[parser.TensorInfo] = []
    data: list[bytes] = []
    offset = 0
    for name, shape in _tensor_shapes().items():
        is_vector = len(shape) == 1
        is_small = is_vector or name.startswith("token")
        number = _F32 if is_small else type_number
        weights = _quantize_row(number, shape[0])
        if not is_vector:
            weights *= shape[1]
        tensor = parser.TensorInfo(
            name=name, shape=shape, type=number, offset=offset, n_bytes=len(weights)
        )
        padded = weights + bytes(-len(weights) % _ALIGNMENT)
        tensors.append(tensor)
        data.append(padded)
        offset += len(padded)
    keys: dict[str, parser.Value] = {
        "general.architecture": "llama",
        "llama.context_length": _N_CTX,
        "llama.embedding_length": _N_EMBD,
        "llama.block_count": _N_LAYERS,
        "llama.feed_forward_length": _N_FF,
        "llama.attention.head_count": _N_HEAD,
        "llama.attention.head_count_kv": _N_HEAD_KV,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": _N_VOCAB,
        "tokenizer.ggml.model": "none",
    }
    entries = [writer.pack_entry(key, value) for key, value in keys.items()]
    with path.open("wb") as file:
        file.write(writer.serialize(entries, tensors, _ALIGNMENT))
        file.writelines(data)


def _tensor_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of the file, by name: width, and height if it is a matrix."""
    n_embd_kv = _N_EMBD * _N_HEAD_KV // _N_HEAD
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (_N_EMBD, _N_VOCAB),
        "output_norm.weight": (_N_EMBD,),
    }
    for i in range(_N_LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (_N_EMBD,),
            f"blk.{i}.attn_q.weight": (_N_EMBD, _N_EMBD),
            f"blk.{i}.attn_k.weight": (_N_EMBD, n_embd_kv),
            f"blk.{i}.attn_v.weight": (_N_EMBD, n_embd_kv),
            f"blk.{i}.attn_output.weight": (_N_EMBD, _N_EMBD),
            f"blk.{i}.ffn_norm.weight": (_N_EMBD,),
            f"blk.{i}.ffn_gate.weight": (_N_EMBD, _N_FF),
            f"blk.{i}.ffn_up.weight": (_N_EMBD, _N_FF),
            f"blk.{i}.ffn_down.weight": (_N_FF, _N_EMBD),
        }
    return shapes


def _quantize_row(type_number: int, width: int) -> bytes:
    """A row of random weights in a type."""
    row = np.random.default_rng(width).standard_normal(width).astype(np.float32) / 32
    type_ = parser.GGML_TYPES[type_number]
    if type_.name == "F32":
        return row.tobytes()
    out = ctypes.create_string_buffer(type_.row_bytes(width))
    GgmlLibrary(C._lib).quantize_chunk(
        type_number, row.ctypes.data, out, 0, 1, width, None
    )
    return out.raw


def answer(request: Request, _: ReportProgress) -> dict[str, Any]:
    return time_type(request["type_number"], Path(request["path"]))


if __name__ == "__main__":
    background_process.serve(answer)
