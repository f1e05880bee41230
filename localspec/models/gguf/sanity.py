"""Values of a header that make llama.cpp abort its process: refused before it sees them.

The asserts are those of llama_model_base::load_hparams in src/llama-model.cpp, gguf_get_val_u16 in
ggml/src/gguf.cpp, and ggml_compute_forward_rms_norm in ggml-cpu/ops.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from localspec.models.gguf.parser import UINT16, Contents, DamagedError

MOST_LAYERS = 512
MOST_EXPERTS = 1024
MOST_PARTS = 1000
SLACK = 65_536
"""Bytes that may stand behind the last tensor: padding."""
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_ONE_EXPERT_IS_NONE = ("hunyuan_vl", "hunyuan-dense")
_WINDOW_BY_LAYER = (
    *("dflash", "dots3note", "gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2"),
    *("spark2_5", "step35"),
)
"""They say for each layer whether it has the sliding window, and one must."""


@dataclass(frozen=True, slots=True)
class Split:
    """Which part of a model a file is, counted from 0."""

    number: int
    count: int
    tensors: int
    """In all parts together."""


def text(contents: Contents, key: str) -> str:
    """A text, empty where there is none.  Raises DamagedError where it is something else."""
    value = contents.keys.get(key, "")
    if not isinstance(value, str):
        raise DamagedError(f"has a damaged header: {key} is no text")
    return value


def check(contents: Contents, architecture: str) -> None:
    """Raise DamagedError where llama.cpp would die of a key of the architecture."""
    number = _Numbers(contents, architecture)
    layers = number("block_count")
    if layers is not None and not 0 < layers <= MOST_LAYERS:
        raise _wrong("block_count", layers)
    predicting = number("nextn_predict_layers") or 0
    if layers is not None and predicting > layers:
        raise _wrong("nextn_predict_layers", predicting)
    _check_experts(number, architecture)
    _check_windows(contents, number, architecture)
    scaling = contents.keys.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in ROPE_SCALINGS:
        raise _wrong("rope.scaling.type", scaling)
    for name in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        epsilon = contents.keys.get(f"{architecture}.{name}", 0.0)
        if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
            raise _wrong(name, epsilon)


def check_size(contents: Contents, size: int) -> None:
    """Raise DamagedError where the file is shorter, or much longer, than its tensors say."""
    if not contents.tensors:
        return
    last = contents.tensors[-1]
    end = contents.data_offset + last.offset + last.n_bytes
    if size < end:
        raise DamagedError(f"is incomplete: {size:,} bytes of {end:,}")
    if size > end + SLACK:
        raise DamagedError(f"has a damaged header: its tensors take {end:,} of {size:,} bytes")


def split(contents: Contents) -> Split | None:
    """None where the file is a whole model."""
    values = [contents.keys.get(f"split.{name}", 0) for name in ("no", "count", "tensors.count")]
    kinds = [contents.kinds.get(f"split.{name}", UINT16) for name in ("no", "count")]
    number, count, tensors = (value if isinstance(value, int) else -1 for value in values)
    if min(number, count, tensors) < 0 or kinds != [UINT16, UINT16] or count > MOST_PARTS:
        raise DamagedError("has a damaged header: its split keys make no sense")
    if count < 2:
        return None
    if number >= count:
        raise DamagedError(f"has a damaged header: part {number + 1} of {count}")
    return Split(number, count, tensors)


class _Numbers:
    """Whole numbers of the architecture; the largest where there is one for each layer."""

    def __init__(self, contents: Contents, architecture: str) -> None:
        self._keys, self._architecture = contents.keys, architecture

    def __call__(self, name: str) -> int | None:
        value = self._keys.get(f"{self._architecture}.{name}")
        values = value if isinstance(value, tuple) else (value,)
        return max((v for v in values if isinstance(v, int)), default=None)


def _check_experts(number: _Numbers, architecture: str) -> None:
    experts = number("expert_count") or 0
    used = number("expert_used_count") or 0
    groups = number("expert_group_count") or 0
    groups_used = number("expert_group_used_count") or 0
    if experts <= 1 and architecture in _ONE_EXPERT_IS_NONE:
        experts = used = 0
    if experts > MOST_EXPERTS or experts < 0:
        raise _wrong("expert_count", experts)
    if used > experts or (experts and used <= 0):
        raise _wrong("expert_used_count", used)
    if groups and groups >= experts:
        raise _wrong("expert_group_count", groups)
    if groups > 1 and (experts % groups or not 0 < groups_used < groups):
        raise _wrong("expert_group_used_count", groups_used)


def _check_windows(contents: Contents, number: _Numbers, architecture: str) -> None:
    key = "attention.sliding_window_pattern"
    layers = contents.keys.get(f"{architecture}.{key}")
    none = isinstance(layers, tuple) and not any(layers)
    if none and architecture in _WINDOW_BY_LAYER and number("attention.sliding_window"):
        raise _wrong(key, "without a layer")


def _wrong(key: str, value: object) -> DamagedError:
    return DamagedError(f"has a damaged header: {key} is {str(value)[:80]}")
