"""Rejects files that llama.cpp cannot run, before it opens them.

Covers other file formats, header values on which llama.cpp aborts its process, and
models that do not generate text.  The asserts are those of
llama_model_base::load_hparams in src/llama-model.cpp, gguf_get_val_u16 in
ggml/src/gguf.cpp, and ggml_compute_forward_rms_norm in ggml-cpu/ops.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from localspec.errors import ModelFileError
from localspec.models.gguf import architectures, trimmed_vocabulary
from localspec.models.gguf.header import Header, SplitInfo
from localspec.models.gguf.parser import (
    FLOAT64,
    UINT16,
    GgufContents,
    InvalidGgufError,
    Value,
)
from localspec.models.gguf.tokenizer import TRIMMED_KEY
from localspec.sanitize import sanitize

MAX_LAYERS = 512
MAX_EXPERTS = 1024
_MAX_SPLITS = 1000
_MAX_TRAILING_BYTES = 65_536  # Padding after the last tensor.
DOWNLOAD_HINT = "Download it again."
_OTHER_MAGICS = (
    (
        b"version https://git-lfs",
        "is a git-lfs pointer: run `git lfs pull` to get the file itself",
    ),
    (b"PK\x03\x04", "is a PyTorch archive, not a GGUF"),
    (b"\x80\x02", "is a Python pickle, not a GGUF"),
    (b"<!DOCTYPE", "is a web page: the download went to a login or error page"),
    (b"<html", "is a web page: the download went to a login or error page"),
)
_RAW_PART = re.compile(r"(.+)\.part\d+of(\d+)")


def check_types(contents: GgufContents, architecture: str) -> None:
    """Raise InvalidGgufError for an architecture key of float64.

    llama.cpp takes none of that type.
    """
    for key, type_ in contents.key_types.items():
        array = contents.arrays.get(key)
        number_type = array.element_type if array else type_
        if key.startswith(f"{architecture}.") and number_type == FLOAT64:
            raise InvalidGgufError(
                f"has a damaged header: {key[:80]} is of type float64"
            )


def check_hparams(header: Header) -> None:
    """Raise InvalidGgufError for architecture keys on which llama.cpp would abort."""
    n_layer = header.hparam("block_count", 1)
    if not 0 < n_layer <= MAX_LAYERS:
        raise _bad_value("block_count", n_layer)
    n_mtp_layers = header.hparam("nextn_predict_layers")
    if n_mtp_layers > header.hparam("block_count", n_mtp_layers):
        raise _bad_value("nextn_predict_layers", n_mtp_layers)
    _check_experts(header)
    _check_windows(header)
    scaling = header.raw_hparam("rope.scaling.type")
    if scaling not in (None, "none", "linear", "yarn", "longrope"):
        raise _bad_value("rope.scaling.type", scaling)
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = header.raw_hparam(key)
        if epsilon is None:
            continue
        if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
            raise _bad_value(key, epsilon)


def _check_windows(header: Header) -> None:
    key = "attention.sliding_window_pattern"
    has_window = header.hparam("attention.sliding_window") != 0
    if not has_window or header.architecture not in architectures.FLAGGING_WINDOWS:
        return
    layers = header.raw_hparam(key)
    if isinstance(layers, tuple) and not any(layers):
        raise _bad_value(key, "set for no layer")


def check_file_size(contents: GgufContents, size: int) -> None:
    """Raise InvalidGgufError if the file has another size than its tensors need."""
    if not contents.tensors:
        return
    last = contents.tensors[-1]
    end = contents.data_offset + last.offset + last.n_bytes
    if TRIMMED_KEY in contents.keys:
        end = trimmed_vocabulary.find_section(contents, len(contents.tokens)).end
    if size < end:
        raise InvalidGgufError(f"is incomplete: {size:,} bytes of {end:,}")
    if size > end + _MAX_TRAILING_BYTES:
        raise InvalidGgufError(
            f"has a damaged header: its tensors take {end:,} of {size:,} bytes"
        )


def read_split(contents: GgufContents) -> SplitInfo | None:
    """None for a model in one file."""
    number = _read_split_key(contents, "split.no", limit=2**16)
    count = _read_split_key(contents, "split.count", limit=_MAX_SPLITS + 1)
    n_tensors = _read_split_key(contents, "split.tensors.count", limit=2**31)
    for key in ("split.no", "split.count"):
        if contents.key_types.get(key, UINT16) != UINT16:
            raise _invalid_split()
    if count < 2:
        return None
    if number >= count:
        raise InvalidGgufError(f"has a damaged header: part {number + 1} of {count}")
    return SplitInfo(number, count, n_tensors)


def _read_split_key(contents: GgufContents, key: str, *, limit: int) -> int:
    value = contents.keys.get(key, 0)
    if not isinstance(value, int) or not 0 <= value < limit:
        raise _invalid_split()
    return value


def _invalid_split() -> InvalidGgufError:
    return InvalidGgufError("has a damaged header: its split keys are invalid")


def _check_experts(header: Header) -> None:
    experts = header.hparam("expert_count")
    used = header.hparam("expert_used_count")
    groups = header.hparam("expert_group_count")
    groups_used = header.hparam("expert_group_used_count")
    if experts <= 1 and header.architecture in architectures.ALLOWING_ONE_EXPERT:
        experts = 0
        used = 0
    if experts > MAX_EXPERTS or experts < 0:
        raise _bad_value("expert_count", experts)
    if used > experts or (experts and used <= 0):
        raise _bad_value("expert_used_count", used)
    if groups and groups >= experts:
        raise _bad_value("expert_group_count", groups)
    if groups > 1 and (experts % groups or not 0 < groups_used < groups):
        raise _bad_value("expert_group_used_count", groups_used)


def _bad_value(key: str, value: object) -> InvalidGgufError:
    return InvalidGgufError(f"has a damaged header: {key} is {str(value)[:80]}")


def check_first_bytes(name: str, first_bytes: bytes, size: int) -> None:
    """Raise ModelFileError unless a file of `size` bytes begins like a GGUF."""
    if size == 0:
        raise ModelFileError(f"{name} is empty.", DOWNLOAD_HINT)
    if part := _RAW_PART.fullmatch(name):
        hint = f"Join them in their order: cat {part[1]}.part1of{part[2]} … > {part[1]}"
        raise ModelFileError(f"{name} is one of {part[2]} parts of a file.", hint)
    for magic, description in _OTHER_MAGICS:
        if first_bytes.lower().startswith(magic.lower()):
            raise ModelFileError(f"{name} {description}.", "Use a .gguf file.")
    if not first_bytes.startswith(b"GGUF"):
        is_text = all(byte >= 32 or byte in b"\t\n\r\f" for byte in first_bytes)
        kind = "a text file" if is_text else "not a GGUF file"
        raise ModelFileError(f"{name} is {kind}.", "Model files end in .gguf.")
    if len(first_bytes) < 24:
        raise ModelFileError(f"{name} is incomplete: {size} bytes.", DOWNLOAD_HINT)


def check_generates_text(
    name: str, architecture: str, keys: Mapping[str, Value]
) -> None:
    """Raise ModelFileError unless it is an autoregressive text model or a head."""
    if keys.get("general.type") == "adapter":
        raise ModelFileError(
            f"{name} is an adapter (LoRA), not a model.", "Use the model itself."
        )
    if architecture in architectures.IMAGE_PARTS:
        shown = sanitize(name, multiline=False)
        hint = f"Use the main file of the model, and with it: --image-model {shown}"
        raise ModelFileError(f"{name} is the image part of a model (mmproj).", hint)
    hint = "Use a model that generates text."
    for names, description in (
        (architectures.SPEECH | architectures.OTHER_SPEECH, "is a speech model"),
        (architectures.IMAGE_GENERATORS, "generates images"),
        (architectures.DIFFUSION, "is a diffusion model, which cannot be run"),
        (
            architectures.ENCODER_DECODERS,
            "is an encoder-decoder model, which cannot be run",
        ),
    ):
        if architecture in names:
            raise ModelFileError(f"{name} {description}: {architecture}.", hint)
    if architecture in architectures.ENCODERS or _is_for_vectors(architecture, keys):
        description = "is an embedding or reranker model and generates no text"
        raise ModelFileError(f"{name} {description}: {architecture}.", hint)


def _is_for_vectors(architecture: str, keys: Mapping[str, Value]) -> bool:
    """Whether a model of a text architecture was trained to embed or rank.

    Such a model pools its outputs, or its attention sees the tokens that follow. A head
    may have such attention, too.
    """
    if architecture in architectures.DRAFT_HEADS:
        return False
    pooling = keys.get(f"{architecture}.pooling_type", 0)
    if isinstance(pooling, int) and pooling > 0:
        return True
    return keys.get(f"{architecture}.attention.causal") is False
