"""Heads of the demo target: the trained ones where they are here, else with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from localspec.models.gguf import reader
from localspec.paths import package_data_dir
from tests.support import head_models
from tests.support.tinygguf import Model, Shape

DEMO = package_data_dir() / "demo"
TARGET = DEMO / "demo-target.gguf"
KINDS = ("eagle3", "dspark", "dflash", "mtp")
_PLACES = (DEMO, Path(__file__).parent / "assets")
_TIED = "token_embd.weight"


@dataclass(frozen=True)
class Pair:
    """A target and its head; the same file where the target brings it."""

    target: Path
    head: Path
    trained: bool


def trained(kind: str) -> Path | None:
    """The file of a trained head, if there is one: of MTP perhaps the layer alone."""
    found = [path for place in _PLACES if (path := place / f"demo-{kind}.gguf").exists()]
    return found[0] if found else None


def pair(kind: str, folder: Path) -> Pair:
    """What is not there is written into the folder."""
    found = trained(kind)
    if kind != "mtp":
        head = found or _random(kind).write(folder / f"random-{kind}.gguf")
        return Pair(TARGET, head, found is not None)
    if found is None or _TIED not in {tensor.name for tensor in reader.read(found).tensors}:
        layer = _tensors(found) if found else {}
        found, with_layer = _with_layer(layer).write(folder / "demo-mtp.gguf"), bool(layer)
        return Pair(found, found, with_layer)
    return Pair(found, found, True)


def _shape() -> Shape:
    facts = reader.read(TARGET)
    return Shape(
        facts.n_embd,
        facts.n_layer,
        facts.n_head,
        facts.n_head_kv,
        facts.hparam("feed_forward_length"),
    )


def _random(kind: str) -> Model:
    shape = _shape()
    n = shape.n_embd
    if kind == "eagle3":
        return head_models.eagle3(n_embd=n, of=n, spoken=TARGET, like=shape)
    return head_models.block(markov=kind == "dspark", n_embd=n, spoken=TARGET, like=shape)


def _tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def _with_layer(layer: dict[str, NDArray[np.float32]]) -> Model:
    """The target as `mimo2`, which may have a layer that predicts; a random one if there is none.

    It turns halves of a head by position where `llama` turns neighbours, so that rows of queries
    and keys change places; nothing else is different.
    """
    shape, tensors = _shape(), _tensors(TARGET)
    size = shape.n_embd // shape.n_head
    for name in [name for name in tensors if name.endswith(("attn_q.weight", "attn_k.weight"))]:
        rows = np.arange(len(tensors[name])).reshape(-1, size // 2, 2).transpose(0, 2, 1).ravel()
        tensors[name] = tensors[name][rows]
    tensors["output.weight"] = tensors.get("output.weight", tensors[_TIED])
    keys: dict[str, Any] = {
        key.removeprefix("llama."): value
        for key, value in reader.read(TARGET).keys.items()
        if key.startswith("llama.")
    }
    model = Model("llama", spoken=TARGET, tensors=tensors, keys=keys, kind=Kind.Q8_0)
    # The window is never reached; one layer must have one.
    head_models.with_mtp_layer(model, shape, 65536, [True, *[False] * shape.n_layer])
    model.tensors |= layer
    return model
