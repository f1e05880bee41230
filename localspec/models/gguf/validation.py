"""Values of a header that make llama.cpp abort its process: refused before it sees them.

The asserts are those of llama_model_base::load_hparams in src/llama-model.cpp, gguf_get_val_u16 in
ggml/src/gguf.cpp, and ggml_compute_forward_rms_norm in ggml-cpu/ops.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from localspec.errors import ModelFileError
from localspec.models.gguf import architectures
from localspec.models.gguf import parser as gguf
from localspec.models.gguf.parser import UINT16, GgufContents, InvalidGgufError, Value

MAX_LAYERS = 512
MAX_EXPERTS = 1024
MAX_SPLITS = 1000
MAX_TRAILING_BYTES = 65_536
"""Bytes that may stand behind the last tensor: padding."""
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_ONE_EXPERT_MEANS_DENSE = ("hunyuan_vl", "hunyuan-dense")
_PER_LAYER_SLIDING_WINDOW = (
    *("dflash", "dots3note", "gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2"),
    *("spark2_5", "step35"),
)
"""They say for each layer whether it has the sliding window, and one must."""


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """Which part of a model a file is, counted from 0."""

    number: int
    count: int
    n_tensors: int
    """In all parts together."""


def get_string(contents: GgufContents, key: str) -> str:
    """A text, empty where there is none.  Raises DamagedError where it is something else."""
    value = contents.keys.get(key, "")
    if not isinstance(value, str):
        raise InvalidGgufError(f"has a damaged header: {key} is no text")
    return value


def check_hparams(contents: GgufContents, architecture: str) -> None:
    """Raise DamagedError where llama.cpp would die of a key of the architecture."""
    number = _IntegerHparams(contents, architecture)
    layers = number("block_count")
    if layers is not None and not 0 < layers <= MAX_LAYERS:
        raise _bad_value("block_count", layers)
    predicting = number("nextn_predict_layers") or 0
    if layers is not None and predicting > layers:
        raise _bad_value("nextn_predict_layers", predicting)
    _check_experts(number, architecture)
    _check_sliding_window(contents, number, architecture)
    scaling = contents.keys.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in ROPE_SCALINGS:
        raise _bad_value("rope.scaling.type", scaling)
    for name in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = contents.keys.get(f"{architecture}.{name}", 0.0)
        if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
            raise _bad_value(name, epsilon)


def check_file_size(contents: GgufContents, size: int) -> None:
    """Raise DamagedError where the file is shorter, or much longer, than its tensors say."""
    if not contents.tensors:
        return
    last = contents.tensors[-1]
    end = contents.data_offset + last.offset + last.n_bytes
    if size < end:
        raise InvalidGgufError(f"is incomplete: {size:,} bytes of {end:,}")
    if size > end + MAX_TRAILING_BYTES:
        raise InvalidGgufError(f"has a damaged header: its tensors take {end:,} of {size:,} bytes")


def read_split(contents: GgufContents) -> SplitInfo | None:
    """None where the file is a whole model."""
    values = [contents.keys.get(f"split.{name}", 0) for name in ("no", "count", "tensors.count")]
    kinds = [contents.key_types.get(f"split.{name}", UINT16) for name in ("no", "count")]
    number, count, tensors = (value if isinstance(value, int) else -1 for value in values)
    if min(number, count, tensors) < 0 or kinds != [UINT16, UINT16] or count > MAX_SPLITS:
        raise InvalidGgufError("has a damaged header: its split keys make no sense")
    if count < 2:
        return None
    if number >= count:
        raise InvalidGgufError(f"has a damaged header: part {number + 1} of {count}")
    return SplitInfo(number, count, tensors)


class _IntegerHparams:
    """Whole numbers of the architecture; the largest where there is one for each layer."""

    def __init__(self, contents: GgufContents, architecture: str) -> None:
        self._keys, self._architecture = contents.keys, architecture

    def __call__(self, name: str) -> int | None:
        value = self._keys.get(f"{self._architecture}.{name}")
        values = value if isinstance(value, tuple) else (value,)
        return max((v for v in values if isinstance(v, int)), default=None)


def _check_experts(hparam: _IntegerHparams, architecture: str) -> None:
    experts = hparam("expert_count") or 0
    used = hparam("expert_used_count") or 0
    groups = hparam("expert_group_count") or 0
    groups_used = hparam("expert_group_used_count") or 0
    if experts <= 1 and architecture in _ONE_EXPERT_MEANS_DENSE:
        experts = used = 0
    if experts > MAX_EXPERTS or experts < 0:
        raise _bad_value("expert_count", experts)
    if used > experts or (experts and used <= 0):
        raise _bad_value("expert_used_count", used)
    if groups and groups >= experts:
        raise _bad_value("expert_group_count", groups)
    if groups > 1 and (experts % groups or not 0 < groups_used < groups):
        raise _bad_value("expert_group_used_count", groups_used)


def _check_sliding_window(
    contents: GgufContents, hparam: _IntegerHparams, architecture: str
) -> None:
    key = "attention.sliding_window_pattern"
    layers = contents.keys.get(f"{architecture}.{key}")
    none = isinstance(layers, tuple) and not any(layers)
    if none and architecture in _PER_LAYER_SLIDING_WINDOW and hparam("attention.sliding_window"):
        raise _bad_value(key, "without a layer")


def _bad_value(key: str, value: object) -> InvalidGgufError:
    return InvalidGgufError(f"has a damaged header: {key} is {str(value)[:80]}")


# --- What a file's first bytes show it to be, said in words where that is no GGUF.

_DOWNLOAD_HINT = "Download it again."
_OTHER_MAGICS = (
    (b"version https://git-lfs", "is a git-lfs pointer: run `git lfs pull` to get the file itself"),
    (b"PK\x03\x04", "is a PyTorch archive, not a GGUF"),
    (b"\x80\x02", "is a Python pickle, not a GGUF"),
    (b"<!DOCTYPE", "is a web page: the download went to a login or error page"),
    (b"<html", "is a web page: the download went to a login or error page"),
)


def check_first_bytes(name: str, head: bytes, size: int) -> None:
    """Raise ModelFileError unless a file of `size` bytes begins like a GGUF."""
    if size == 0:
        raise ModelFileError(f"{name} is empty.", _DOWNLOAD_HINT)
    for magic, what in _OTHER_MAGICS:
        if head.lower().startswith(magic.lower()):
            raise ModelFileError(f"{name} {what}.", "Give a .gguf file.")
    if not head.startswith(b"GGUF"):
        kind = "a text file" if _is_text(head) else "not a GGUF file"
        raise ModelFileError(f"{name} is {kind}.", "Models are files that end in .gguf.")
    if len(head) < 24:
        raise ModelFileError(f"{name} is incomplete: {size} bytes.", _DOWNLOAD_HINT)
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", head, 4)
    if version not in gguf.VERSIONS:
        big = struct.unpack_from(">I", head, 4)[0] in gguf.VERSIONS
        why = "is in the byte order of another kind of computer" if big else f"is GGUF v{version}"
        raise ModelFileError(f"{name} {why}, which cannot be run.", "Convert it again.")
    if n_tensors > gguf.MAX_ENTRIES or n_keys > gguf.MAX_ENTRIES:
        raise ModelFileError(f"{name} has a damaged header.", _DOWNLOAD_HINT)


def _is_text(head: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)


# --- Files that are sound and yet write no text: what they are, in words.

_TEXT_MODEL_HINT = "Give a model that writes text."


@dataclass(frozen=True, slots=True)
class NonTextModel:
    """What such a file is, and what to give instead."""

    description: str
    hint: str = _TEXT_MODEL_HINT


def identify_non_text_model(architecture: str, keys: Mapping[str, Value]) -> NonTextModel | None:
    """None for a model that writes from left to right, and for a head."""
    if keys.get("general.type") == "adapter":
        return NonTextModel(
            "is an adapter (LoRA): it changes a model and is none", "Give the model itself."
        )
    if architecture == "clip":
        return NonTextModel(
            "is the image part of a model (mmproj)", "Give the main file of the model."
        )
    for names, what in (
        (architectures.SPEECH, "is a model of speech"),
        (architectures.IMAGE_GENERATORS, "makes images"),
        (architectures.DIFFUSION, "does not write from left to right (diffusion)"),
        (frozenset({"t5"}), "reads and writes in two halves (T5), which cannot be run here"),
    ):
        if architecture in names:
            return NonTextModel(f"{what}: {architecture}")
    if architecture in architectures.ENCODERS or _is_embedding_model(architecture, keys):
        return NonTextModel(
            f"makes vectors of texts and writes none (embedding or reranker): {architecture}"
        )
    return None


def _is_embedding_model(architecture: str, keys: Mapping[str, Value]) -> bool:
    """A writer's architecture that was trained to embed or to rank says how it sums up a text."""
    if architecture in architectures.DRAFT_HEADS:
        return False
    pooling = keys.get(f"{architecture}.pooling_type", 0)
    causal = keys.get(f"{architecture}.attention.causal", True)
    return causal is False or (isinstance(pooling, int) and pooling > 0)
