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
from localspec.models.gguf.header import Header
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


def _random(kind: str) -> Model:
    facts = reader.read(TARGET)
    n, n_ff = facts.n_embd, facts.hparam("feed_forward_length")
    like = Shape(n_head=facts.n_head, n_head_kv=facts.n_head_kv, n_ff=n_ff)
    if kind == "eagle3":
        return head_models.eagle3(n_embd=n, of=n, spoken=TARGET, like=like)
    return head_models.block(markov=kind == "dspark", n_embd=n, spoken=TARGET, like=like)


def _tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def _with_layer(layer: dict[str, NDArray[np.float32]]) -> Model:
    """The target as `mimo2`, which may have a layer that predicts; a random one if there is none.

    It turns halves of a head by position where `llama` turns neighbours, so that rows of queries
    and keys change places; nothing else is different.
    """
    facts, tensors = reader.read(TARGET), _tensors(TARGET)
    size = facts.n_embd // facts.n_head
    for name in [name for name in tensors if name.endswith(("attn_q.weight", "attn_k.weight"))]:
        rows = np.arange(len(tensors[name])).reshape(-1, size // 2, 2).transpose(0, 2, 1).ravel()
        tensors[name] = tensors[name][rows]
    tensors["output.weight"] = tensors.get("output.weight", tensors[_TIED])
    keys: dict[str, Any] = {
        key.removeprefix("llama."): value
        for key, value in facts.keys.items()
        if key.startswith("llama.")
    }
    keys |= {
        "block_count": facts.n_layer + 1,
        "nextn_predict_layers": 1,
        "expert_feed_forward_length": facts.hparam("feed_forward_length"),
        "attention.sliding_window": 65536,  # never reached; one layer must have one
        "attention.sliding_window_pattern": [True, *[False] * facts.n_layer],
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.freq_base_swa": keys.get("rope.freq_base", 10000.0),
    }
    tensors |= layer or _random_layer(facts.n_layer, facts.n_embd, facts)
    return Model("mimo2", spoken=TARGET, tensors=tensors, keys=keys, kind=Kind.Q8_0)


def _random_layer(at: int, n: int, facts: Header) -> dict[str, NDArray[np.float32]]:
    rng, block, n_ff = np.random.default_rng(9), f"blk.{at}", facts.hparam("feed_forward_length")
    fused = n + 2 * facts.n_head_kv * (n // facts.n_head)
    shapes = {"attn_qkv": (fused, n), "attn_output": (n, n), "nextn.eh_proj": (n, 2 * n)}
    shapes |= {"ffn_gate": (n_ff, n), "ffn_up": (n_ff, n), "ffn_down": (n, n_ff)}
    layer = {
        f"{block}.{name}.weight": rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
        for name, shape in shapes.items()
    }
    for name in ("attn_norm", "ffn_norm", "nextn.enorm", "nextn.hnorm"):
        layer[f"{block}.{name}.weight"] = np.ones(n, np.float32)
    return layer
