"""The one door to llama.cpp: the library, its log, what it can compute on."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from importlib import metadata
from typing import Any

from localspec.clean import clean
from localspec.errors import EngineError
from localspec.machine import runtimes

__all__ = [
    "LOG",
    "LOGITS",
    "C",
    "devices",
    "versions",
]

# Before llama.cpp is loaded: an abort otherwise starts a debugger and can hang for minutes.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
runtimes.preload()

try:
    import llama_cpp.llama_cpp as C  # noqa: N812  short, as llama.cpp's own examples
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    raise EngineError(
        f"llama.cpp cannot be loaded: {clean(str(error), multiline=False)}",
        "Install it again: pip install --force-reinstall --no-cache-dir llama-cpp-python",
    ) from error

_AS_KNOWN = (2048, -1.0, 1, 1, 0, 1, False)


def _check_structs() -> None:
    """A library of another release would find our settings in other places, and say nothing.

    What it sets unasked stands before, between and after the fields that releases add.
    """
    context, model = C.llama_context_default_params(), C.llama_model_default_params()
    first = (context.n_batch, context.yarn_ext_factor, context.type_k, context.type_v)
    if (*first, context.n_samplers, model.split_mode, model.vocab_only) != _AS_KNOWN:
        raise EngineError(
            f"llama-cpp-python {metadata.version('llama-cpp-python')} and the llama.cpp library "
            "that it loads are of different releases.",
            "Install it again, and take LLAMA_CPP_LIB_PATH out of the environment.",
        )


_check_structs()

LOGITS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("llama_get_logits", C._lib))
"""llama_get_logits giving a plain address: asked once a pass, a pointer object costs too much."""

_ERROR = 4
"""GGML_LOG_LEVEL_ERROR."""


class Log:
    """llama.cpp's log: its last lines, cleaned, instead of its stderr."""

    def __init__(self) -> None:
        self.lines: deque[tuple[int, str]] = deque(maxlen=400)
        self._level = 0
        self._line = ""
        self._callback = C.llama_log_callback(self._take)
        C.llama_log_set(self._callback, None)

    def _take(self, level: int, text: bytes, _: Any) -> None:
        if level <= _ERROR:  # a higher level continues the line before
            self._level = level
        self._line += text.decode("utf-8", "replace")
        *whole, self._line = self._line.split("\n")
        for line in filter(str.strip, whole):
            self.lines.append((self._level, clean(line)))
            if self._level == _ERROR:  # an abort may follow, and whoever started us wants to know
                os.write(2, f"{clean(line)}\n".encode())

    def errors(self) -> list[str]:
        return [line for level, line in self.lines if level == _ERROR]


LOG = Log()
C.llama_backend_init()


def versions() -> dict[str, str]:
    return {"llama_cpp_python": metadata.version("llama-cpp-python")}


def devices() -> tuple[str, ...]:
    """What the installed llama.cpp can compute on; only the CPU where it cannot say."""
    if not C.llama_supports_gpu_offload():
        return ("CPU",)
    try:
        library = C._lib
        library.ggml_backend_dev_get.restype = ctypes.c_void_p
        library.ggml_backend_dev_description.restype = ctypes.c_char_p
        library.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
        found = [library.ggml_backend_dev_get(i) for i in range(library.ggml_backend_dev_count())]
        names = [library.ggml_backend_dev_description(device) for device in found]
    except AttributeError:
        return ("CPU",)
    return tuple(clean(name.decode("utf-8", "replace")) for name in names)
