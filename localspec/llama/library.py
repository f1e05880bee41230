"""The llama.cpp library: loading, log, devices, and errors for its failures."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localspec import install_hints
from localspec.errors import (
    EngineError,
    Hint,
    LocalspecError,
    ModelFileError,
    OutOfMemoryError,
    UsageError,
)
from localspec.machine import installed_llama_cpp
from localspec.machine.device import BufferLog
from localspec.machine.ggml import GgmlLibrary
from localspec.sanitize import sanitize

__all__ = ["LOG", "C", "devices", "get_logits_address"]

# Set before llama.cpp is loaded: an abort would start a debugger, which can hang for
# minutes.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
installed_llama_cpp.preload_cuda_libraries()
installed_llama_cpp.skip_package_init()

try:
    import llama_cpp.llama_cpp as C  # noqa: N812  short, as llama.cpp's own examples
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    raise EngineError(
        f"llama.cpp cannot be loaded: {sanitize(str(error), multiline=False)}",
        f"Reinstall it: {install_hints.reinstall_llama_cpp()}",
    ) from error

_EXPECTED_DEFAULTS = (2048, -1.0, 1, 1, 0, 1, False)


def _check_structs() -> None:
    """Raise EngineError if the library's structs are not those of llama-cpp-python.

    Releases add fields. The defaults of fields before, between and after these are
    compared.
    """
    context = C.llama_context_default_params()
    model = C.llama_model_default_params()
    defaults = (
        context.n_batch,
        context.yarn_ext_factor,
        context.type_k,
        context.type_v,
        context.n_samplers,
        model.split_mode,
        model.vocab_only,
    )
    if defaults != _EXPECTED_DEFAULTS:
        raise EngineError(
            f"llama-cpp-python {installed_llama_cpp.version()} and the llama.cpp library "
            "it loads are of different releases.",
            "Reinstall it, and unset LLAMA_CPP_LIB_PATH.",
        )


_check_structs()

get_logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
    ("llama_get_logits", C._lib)
)
"""llama_get_logits with a plain address as result: a ctypes pointer is slow to create."""

_LOG_LEVEL_DEBUG = 1
_LOG_LEVEL_ERROR = 4


class LlamaLog:
    """Receives llama.cpp's log and keeps its last lines, sanitised.

    Errors also go to stderr, which is the engine log. A pass that was asked to stop is
    the exception: llama.cpp reports the stop as three errors ("failed to compute graph",
    say). So from the request on, the errors of its thread wait for the end of the pass:
    they are dropped if it did stop, and written if it failed.
    """

    def __init__(self) -> None:
        self.lines: deque[tuple[int, str]] = deque(maxlen=400)
        self.buffers = BufferLog()
        self._stop_checks: dict[int, Callable[[], bool]] = {}
        """By thread that runs a stoppable pass: whether the pass was asked to stop."""
        self._waiting_errors: dict[int, list[str]] = {}
        """By thread, because a draft model's pass runs beside the target's."""
        self._level = 0
        self._partial_line = ""
        self.callback = C.llama_log_callback(self._on_log)
        C.llama_log_set(self.callback, None)

    def _on_log(self, level: int, text: bytes, _: Any) -> None:
        if level <= _LOG_LEVEL_ERROR:  # a higher level continues the line before
            self._level = level
        if self._level == _LOG_LEVEL_DEBUG:  # thousands of lines
            return
        self._partial_line += text.decode("utf-8", "replace")
        *lines, self._partial_line = self._partial_line.split("\n")
        for line in filter(str.strip, lines):
            self.buffers.read(line)
            clean_line = sanitize(line)
            if self._level != _LOG_LEVEL_ERROR:
                self.lines.append((self._level, clean_line))
            elif self._is_stop_requested():
                waiting = self._waiting_errors.setdefault(threading.get_ident(), [])
                waiting.append(clean_line)
            else:
                self._write_error(clean_line)

    def _write_error(self, line: str) -> None:
        self.lines.append((_LOG_LEVEL_ERROR, line))
        # The parent needs the line if an abort follows.
        os.write(2, f"{line}\n".encode())

    def _is_stop_requested(self) -> bool:
        check = self._stop_checks.get(threading.get_ident())
        return check is not None and check()

    def begin_stoppable_pass(self, is_stop_requested: Callable[[], bool]) -> None:
        self._stop_checks[threading.get_ident()] = is_stop_requested

    def end_stoppable_pass(self, *, is_stopped: bool) -> None:
        thread = threading.get_ident()
        del self._stop_checks[thread]
        waiting = self._waiting_errors.pop(thread, [])
        if not is_stopped:
            for line in waiting:
                self._write_error(line)

    def clear(self) -> None:
        """Call it before loading a model or a context."""
        self.lines.clear()
        self.buffers = BufferLog()

    def errors(self) -> list[str]:
        return [line for level, line in self.lines if level == _LOG_LEVEL_ERROR]


LOG = LlamaLog()
C.llama_backend_init()


def has_gpu() -> bool:
    """Whether llama.cpp has a device besides the CPU."""
    return bool(C.llama_supports_gpu_offload())


def devices() -> tuple[str, ...]:
    """Names of the installed llama.cpp's devices; only the CPU if they are unknown."""
    if not has_gpu():
        return ("CPU",)
    ggml = GgmlLibrary(C._lib)
    try:
        return tuple(
            sanitize(ggml.describe(each)["description"]) for each in ggml.devices()
        )
    except AttributeError:
        return ("CPU",)


# --- Errors for people, from llama.cpp's log and return codes

_OUT_OF_MEMORY = re.compile(
    "out of memory|unable to allocate|cannot allocate memory|insufficient memory|bad_alloc",
    re.I,
)
_DECODE_OUT_OF_MEMORY = -2
"""llama_decode's return code if the compute graph could not be allocated."""
_LAST_ERRORS = 4  # Lines of the log that may belong to a decode that failed.


def load_error(path: Path) -> LocalspecError:
    reason = (LOG.errors() or ["llama.cpp gave no reason"])[0]
    text = " ".join(LOG.errors())
    refusal = _refused_split(text)
    if refusal is not None:
        return refusal
    hint = "Download it again, or try another file."
    if _OUT_OF_MEMORY.search(text):
        return OutOfMemoryError(
            f"Not enough memory to load {path.name}.",
            Hint("Use a smaller quantisation, fewer {gpu_layers}, or {draft=none}."),
        )
    if "not within the file bounds" in text or "failed to read" in text:
        hint = "The file is incomplete: download it again."
    elif "unknown model architecture" in text:
        version = installed_llama_cpp.version()
        hint = f"It needs a newer llama.cpp than that of llama-cpp-python {version}."
    elif any(
        phrase in text
        for phrase in ("missing tensor", "' not found", "number of tensors")
    ):
        hint = "It is not a complete model: perhaps only a vocabulary, or one part of a split."
    return ModelFileError(
        f"{path.name} cannot be loaded: {strip_function_names(reason)}", hint
    )


def _refused_split(text: str) -> UsageError | None:
    """The error if the settings are wrong for the devices; None if the file is."""
    found = re.search(
        r"invalid value for main_gpu: (-?\d+) \(available devices: (\d+)\)", text
    )
    if found:
        gpus = "1 GPU" if found[2] == "1" else f"{found[2]} GPUs"
        return UsageError(
            f"--main-gpu {found[1]} is not there: llama.cpp finds {gpus}, counted from 0.",
            "localspec doctor lists them.",
        )
    by_layers = Hint("Use {split=layer}.")
    if "does not support split buffers" in text:
        return UsageError("This GPU's backend cannot split rows.", by_layers)
    found = re.search(
        r"SPLIT_MODE_TENSOR not implemented for architecture '([^']*)'", text
    )
    if found:
        message = (
            f"llama.cpp cannot split the tensors of this architecture ({found[1]})."
        )
        return UsageError(message, by_layers)
    if "SPLIT_MODE_TENSOR needs >= 1 devices" in text:
        message = "There is no GPU among which tensors could be split."
        return UsageError(message, by_layers)
    return None


def strip_function_names(line: str) -> str:
    """A log line of llama.cpp without the function names at its start."""
    text = line
    while (cut := text.find(": ")) > 0 and " " not in text[:cut]:
        text = text[cut + 2 :]
    return text.removeprefix("error loading model: ").rstrip(".") + "."


def context_error(path: Path) -> LocalspecError:
    text = " ".join(LOG.errors())
    if "allocate" in text or "memory" in text:
        return OutOfMemoryError(
            f"Not enough memory for the context of {path.name}.",
            Hint(
                "Use a smaller {ctx}, {kv=q8_0}, fewer {gpu_layers}, or {draft=none}."
            ),
        )
    if "SPLIT_MODE_TENSOR" in text:
        return _refused_tensor_split(text)
    reason = strip_function_names((LOG.errors() or ["llama.cpp gave no reason"])[-1])
    hint = Hint("Try {kv=f16} and {flash_attn=auto}, or {draft=none}.")
    return UsageError(
        f"Cannot create a context for {path.name} with these settings: {reason}", hint
    )


def _refused_tensor_split(text: str) -> UsageError:
    """llama.cpp's of late 2026 refuses flash attention that is off; older ones more."""
    if "KV cache quantization" in text:
        return UsageError(
            "This llama.cpp cannot split tensors with a quantised KV cache.",
            Hint("Use {kv=f16} or {split=layer}."),
        )
    return UsageError(
        "Splitting tensors needs flash attention.",
        Hint("Use {flash_attn=auto} or {split=layer}."),
    )


def decode_error(result: int) -> LocalspecError:
    """Metal logs why a pass failed and returns the code of any failure."""
    log = " ".join(LOG.errors()[-_LAST_ERRORS:])
    if result < -1 and _OUT_OF_MEMORY.search(log):
        result = _DECODE_OUT_OF_MEMORY
    reason = {
        1: "has no space left in the KV cache",
        2: "was aborted",
        -1: "rejected the tokens",
        _DECODE_OUT_OF_MEMORY: "ran out of memory while computing",
    }.get(result, f"failed with code {result}")
    message = f"llama.cpp {reason}."
    errors = LOG.errors()
    if errors:
        message += f" {strip_function_names(errors[-1])}"
    kind = OutOfMemoryError if result == _DECODE_OUT_OF_MEMORY else EngineError
    return kind(
        message,
        Hint("Use a smaller {ctx}, fewer {gpu_layers}, or {draft=none}."),
    )
