"""The one door to llama.cpp: the library, its log, what it can compute on."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from localspec.clean import clean
from localspec.errors import EngineError

__all__ = [
    "FLASH",
    "KV_TYPES",
    "LOG",
    "LOGITS",
    "SPLIT",
    "C",
    "devices",
    "has_amx",
    "threads",
    "versions",
]

# Before llama.cpp is loaded: an abort otherwise starts a debugger and can hang for minutes.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

try:
    import llama_cpp.llama_cpp as C  # noqa: N812  short, as llama.cpp's own examples
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    raise EngineError(
        f"llama.cpp cannot be loaded: {clean(str(error), multiline=False)}",
        "Install it again: pip install --force-reinstall --no-cache-dir llama-cpp-python",
    ) from error

KV_TYPES = {
    "f32": C.GGML_TYPE_F32,
    "f16": C.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which llama_cpp does not name
    "q8_0": C.GGML_TYPE_Q8_0,
    "q4_0": C.GGML_TYPE_Q4_0,
}
FLASH = {
    "auto": C.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": C.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": C.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
SPLIT = {
    "none": C.LLAMA_SPLIT_MODE_NONE,
    "layer": C.LLAMA_SPLIT_MODE_LAYER,
    "row": C.LLAMA_SPLIT_MODE_ROW,
}
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


@cache
def has_amx() -> bool:
    """Whether ggml would take its AMX path, which dies of SIGILL when GCC 12 or older built it.

    That compiler drops the tile configuration ggml writes before `ldtilecfg`.  Only servers have
    AMX; without the extra buffer types such a machine uses AVX-512.
    """
    try:
        return "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def threads(asked: int | None) -> int:
    """Physical cores - 1 unless asked: two full pools and a screen would stall each other."""
    most = 4 * (os.cpu_count() or 1)
    if asked is not None:
        return max(1, min(asked, most))
    return max(1, (psutil.cpu_count(logical=False) or os.cpu_count() or 2) - 1)
