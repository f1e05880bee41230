"""Small random targets of the architectures whose hidden states heads read."""

import numpy as np
from gguf import GGMLQuantizationType as Kind
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec.models.gguf.parser import TensorInfo
from tests.support import synthetic_header
from tests.support.families import FAMILIES
from tests.support.tinygguf import EOS, Model

_ENDS = ("output.weight", "token_embd.weight")


def target(name: str, seed: int = 0, *, dense: bool = False) -> Model:
    """One of the families; Q8_0, which computes the same at every width.

    Untied, lest the likeliest token after any be the same again.
    """
    family = FAMILIES[name].small
    model = Model(family.architecture, kind=Kind.Q8_0)
    shape = replace(family, vocab=len(model.vocabulary()), context=1024, tied=False)
    if dense:
        shape = replace(shape, experts=0, experts_used=0, expert_ff=0)
    if shape.conv and shape.full_every:  # as few layers as show the pattern
        shape = replace(shape, layers=min(shape.layers, max(4, shape.full_every)))
    header = synthetic_header.build(shape, "Q8_0")
    prefix = f"{shape.architecture}."
    model.keys = {
        key.removeprefix(prefix): list(value) if isinstance(value, tuple) else value
        for key, value in header.keys.items()
        if key.startswith(prefix)
    }
    rng = np.random.default_rng(seed)
    model.tensors = {tensor.name: _weights(rng, tensor) for tensor in header.tensors}
    model.exact = {
        tensor.name for tensor in header.tensors if tensor.type_name == "F32"
    }
    model.tensors[_ENDS[0]][EOS] = 0
    return model


def gemma4(name: str = "gemma4", window: int = 32) -> Model:
    """One of the families, with a short window; `dense` is "gemma4" without experts."""
    model = target(name.replace("dense", "gemma4"), dense=name == "dense")
    model.keys["attention.sliding_window"] = window
    return model


def with_layer(model: Model, like: int, seed: int = 9) -> Model:
    """With one more layer, which predicts (MTP), of the shapes of the layer `like`."""
    rng = np.random.default_rng(seed)
    n_embd = model.keys["embedding_length"]
    at = model.keys["block_count"]
    old = f"blk.{like}."
    new = f"blk.{at}."
    for name in [name for name in model.tensors if name.startswith(old)]:
        shape = model.tensors[name].shape
        copied = name.replace(old, new)
        ones = len(shape) < 2
        model.tensors[copied] = (
            np.ones(shape, np.float32) if ones else _normal(rng, shape)
        )
    model.tensors[f"{new}nextn.eh_proj.weight"] = _normal(rng, (n_embd, 2 * n_embd))
    for name in ("enorm", "hnorm"):
        model.tensors[f"{new}nextn.{name}.weight"] = np.ones(n_embd, np.float32)
    model.keys |= {"block_count": at + 1, "nextn_predict_layers": 1}
    return model


def without_layers(model: Model) -> Model:
    """A model without its layers of MTP."""
    keys = dict(model.keys)
    pattern = "attention.sliding_window_pattern"
    n = keys.pop("nextn_predict_layers")
    keys |= {"block_count": keys["block_count"] - n, pattern: keys[pattern][:-n]}
    last = tuple(f"blk.{keys['block_count'] + i}." for i in range(n))
    tensors = {k: v for k, v in model.tensors.items() if not k.startswith(last)}
    return replace(model, tensors=tensors, keys=keys)


def layer_alone(model: Model) -> Model:
    """Of a model with such layers, those and what they need to run: as a file (mtp-…)."""
    end = model.keys["block_count"]
    first = end - model.keys["nextn_predict_layers"]
    last = tuple(f"blk.{il}." for il in range(first, end))
    kept = (*_ENDS, "output_norm.weight")
    tensors = {
        k: v for k, v in model.tensors.items() if k.startswith(last) or k in kept
    }
    return replace(model, tensors=tensors)


def _weights(rng: np.random.Generator, tensor: TensorInfo) -> NDArray[np.float32]:
    """Of such a size that what passes through neither grows nor dies out."""
    name = tensor.name
    shape = tensor.shape[::-1]
    if "norm" in name or "rope_freqs" in name or "scale" in name:
        return np.ones(shape, np.float32)
    if name.endswith("ssm_a"):
        return np.full(shape, -1.0, np.float32)
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    return _normal(rng, shape) * np.float32(8.0 if name == _ENDS[1] else 1.0)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-1]), np.float32)
