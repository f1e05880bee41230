"""What llama.cpp's failures mean for a person: its log and return codes, translated."""

from __future__ import annotations

from pathlib import Path

from localspec.engine.llama.library import LOG, versions
from localspec.errors import (
    EngineError,
    LocalspecError,
    ModelFileError,
    OutOfMemoryError,
    UsageError,
)

_FULL = ("out of memory", "unable to allocate", "cannot allocate memory", "bad_alloc")
_NO_MEMORY = -2
"""llama_decode's code where the graph found no memory."""


def load_error(path: Path) -> LocalspecError:
    reason = (LOG.errors() or ["llama.cpp gave no reason"])[0]
    text = " ".join(LOG.errors())
    hint = "Download it again, or try another file."
    if any(words in text.lower() for words in _FULL):
        return OutOfMemoryError(
            f"Not enough memory to load {path.name}.",
            "Use a smaller quantisation, fewer --gpu-layers, or --draft none.",
        )
    if "not within the file bounds" in text or "failed to read" in text:
        hint = "The file is incomplete: download it again."
    elif "unknown model architecture" in text:
        version = versions()["llama_cpp_python"]
        hint = f"It needs a newer llama.cpp than llama-cpp-python {version} carries."
    elif any(words in text for words in ("missing tensor", "' not found", "number of tensors")):
        hint = "It is not a whole model: perhaps only a vocabulary, or one part of a split."
    return ModelFileError(f"{path.name} cannot be loaded: {_reason(reason)}", hint)


def _reason(line: str) -> str:
    """llama.cpp's line without the function names in front."""
    text = line
    while (cut := text.find(": ")) > 0 and " " not in text[:cut]:
        text = text[cut + 2 :]
    return text.removeprefix("error loading model: ").rstrip(".") + "."


def context_error(path: Path) -> LocalspecError:
    text = " ".join(LOG.errors())
    if "allocate" in text or "memory" in text:
        return OutOfMemoryError(
            f"Not enough memory for the context of {path.name}.",
            "Use a smaller --ctx, --kv q8_0, fewer --gpu-layers, or --draft none.",
        )
    reason = _reason((LOG.errors() or ["llama.cpp gave no reason"])[-1])
    hint = "Try --kv f16 and --flash-attn auto, or --draft none."
    return UsageError(f"No context for {path.name} with these settings: {reason}", hint)


def decode_error(result: int) -> LocalspecError:
    reason = {
        1: "found no room in its memory for the tokens",
        2: "was stopped",
        -1: "refused the tokens",
        _NO_MEMORY: "ran out of memory while computing",
    }.get(result, f"failed with code {result}")
    last = (LOG.errors() or [""])[-1]
    kind = OutOfMemoryError if result == _NO_MEMORY else EngineError
    return kind(
        f"llama.cpp {reason}.{' ' + _reason(last) if last else ''}",
        "Use a smaller --ctx, fewer --gpu-layers, or --draft none.",
    )
