"""Model families for tests: for each a small shape, and the shape of a published model.

A ghost is a sparse file with a correct header, whose data are zeros: it loads, and
takes the memory that the model takes.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.models.catalog_entries import CatalogShape
from localspec.models.gguf import writer
from localspec.models.gguf.header import Header
from tests.support import synthetic_header


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture in two sizes, and the quantisation of its published files."""

    full: CatalogShape
    small: CatalogShape
    quantisation: str = "Q4_K_M"
    name: str = ""
    """Of the full model."""


def make_shape(numbers: str) -> CatalogShape:
    """`llama layers=32 tied=1 full_layers=5,15`: an architecture and its numbers."""
    architecture, *pairs = numbers.split()
    values: dict[str, Any] = {}
    for name, value in (pair.split("=") for pair in pairs):
        many = tuple(map(int, value.split(",")))
        values[name] = many if name == "full_layers" else many[0]
    return CatalogShape(architecture=architecture, **values)


_SMALL = "context=8192 layers=4 embd=256 ff=512 heads=4 kv_heads=2 vocab=2048"
_LLAMA = (
    "llama layers=32 embd=4096 ff=14336 heads=32 kv_heads=8 vocab=128256 context=131072 "
    "rope_factors=1"
)
_MISTRAL = (
    "llama layers=32 embd=4096 ff=14336 heads=32 kv_heads=8 vocab=32768 context=32768"
)
_SMALL_MOE = "experts=8 experts_used=2 expert_ff=256"
_SMALL_SHARED_MOE = "experts=4 experts_used=2 expert_ff=256 shared_ff=256"
_SMALL_DELTA = "head_dim=64 rope_dim=16 state=64 state_heads=8 groups=4 layers=8"


def _family(
    title: str, full: str, small: str = "", quantisation: str = "Q4_K_M"
) -> Family:
    """`small`: what differs in the small model, beside `_SMALL`."""
    return Family(
        make_shape(full), make_shape(f"{full} {_SMALL} {small}"), quantisation, title
    )


FAMILIES: dict[str, Family] = {
    "llama": _family("Llama 3.1 8B", _LLAMA),
    "llama-tied": _family(
        "Llama 3.2 1B", f"{_LLAMA} layers=16 embd=2048 ff=8192 tied=1"
    ),
    "mistral": _family("Mistral 7B v0.3", _MISTRAL),
    "qwen2": _family(
        "Qwen2.5 7B",
        "qwen2 layers=28 embd=3584 ff=18944 heads=28 kv_heads=4 vocab=152064 context=32768",
    ),
    "qwen3": _family(
        "Qwen3 8B",
        "qwen3 layers=36 embd=4096 ff=12288 heads=32 kv_heads=8 head_dim=128 vocab=151936 "
        "context=40960",
        "head_dim=128",
    ),
    "qwen3moe": _family(
        "Qwen3 30B-A3B",
        "qwen3moe layers=48 embd=2048 ff=6144 heads=32 kv_heads=4 head_dim=128 vocab=151936 "
        "context=40960 experts=128 experts_used=8 expert_ff=768",
        f"head_dim=128 {_SMALL_MOE}",
    ),
    "gemma2": _family(
        "Gemma 2 9B",
        "gemma2 layers=42 embd=3584 ff=14336 heads=16 kv_heads=8 head_dim=256 vocab=256000 "
        "context=8192 tied=1 window=1024 full_every=6",
        "head_dim=64 window=1024",
    ),
    "gemma3": _family(
        "Gemma 3 12B",
        "gemma3 layers=48 embd=3840 ff=15360 heads=16 kv_heads=8 head_dim=256 vocab=262208 "
        "context=131072 tied=1 window=1024 full_every=6",
        "layers=6 head_dim=64 window=512",
    ),
    "gemma4": _family(
        "Gemma 4 26B-A4B",
        "gemma4 layers=30 embd=2816 ff=2112 heads=16 kv_heads=8 head_dim=512 vocab=262144 "
        "context=262144 tied=1 rope_factors=1 window=1024 full_every=6 full_kv_heads=2 "
        "sliding_head_dim=256 keys_as_values=1 experts=128 experts_used=8 expert_ff=704",
        f"layers=6 head_dim=128 sliding_head_dim=64 full_kv_heads=1 window=512 {_SMALL_MOE}",
    ),
    "gemma4-e": _family(
        "Gemma 4 E2B",
        "gemma4 layers=35 embd=1536 ff=6144 heads=8 kv_heads=1 head_dim=512 vocab=262144 "
        "context=131072 tied=1 rope_factors=1 window=512 full_every=5 sliding_head_dim=256 "
        "shared_kv_layers=20 shared_kv_ff=12288 layer_embd=256",
        "layers=10 head_dim=128 sliding_head_dim=64 shared_kv_layers=5 shared_kv_ff=1024 "
        "layer_embd=64",
    ),
    "gpt-oss": _family(
        "gpt-oss 20B",
        "gpt-oss layers=24 embd=2880 heads=64 kv_heads=8 head_dim=64 vocab=201088 context=131072 "
        "experts=32 experts_used=4 expert_ff=2880 window=128 full_every=2",
        "ff=0 head_dim=64 experts=4 experts_used=2 expert_ff=256",
        "MXFP4",
    ),
    "phi3": _family(
        "Phi-4",
        "phi3 layers=40 embd=5120 ff=17920 heads=40 kv_heads=10 vocab=100352 context=16384",
    ),
    "deepseek2": _family(
        "GLM-4.7-Flash",
        "deepseek2 layers=47 embd=2048 ff=10240 heads=20 head_dim=256 value_dim=256 rope_dim=64 "
        "q_rank=768 kv_rank=512 vocab=154880 context=202752 experts=64 experts_used=4 "
        "expert_ff=1536 shared_ff=1536 dense_layers=1",
        f"kv_heads=0 head_dim=96 value_dim=64 rope_dim=32 q_rank=256 kv_rank=256 "
        f"{_SMALL_SHARED_MOE}",
    ),
    "mamba2": _family(
        "Mamba2 1.3B",
        "mamba2 layers=48 embd=2048 vocab=50288 context=1048576 tied=1 conv=4 inner=4096 "
        "state=128 state_heads=64 groups=1",
        "ff=0 heads=0 kv_heads=0 inner=512 state=64 state_heads=8",
        "Q8_0",
    ),
    "qwen35": _family(
        "Qwen3.5 4B",
        "qwen35 layers=32 embd=2560 ff=9216 heads=16 kv_heads=4 head_dim=256 rope_dim=64 "
        "vocab=248320 context=262144 tied=1 full_every=4 conv=4 state=128 state_heads=32 groups=16",
        _SMALL_DELTA,
    ),
    "qwen35moe": _family(
        "Qwen3.6 35B-A3B",
        "qwen35moe layers=40 embd=2048 heads=16 kv_heads=2 head_dim=256 rope_dim=64 vocab=248320 "
        "context=262144 full_every=4 conv=4 state=128 state_heads=32 groups=16 experts=256 "
        "experts_used=8 expert_ff=512 shared_ff=512",
        f"ff=0 {_SMALL_DELTA} {_SMALL_SHARED_MOE}",
    ),
    "granite": _family(
        "Granite 4.0 Micro",
        "granite layers=40 embd=2560 ff=8192 heads=40 kv_heads=8 vocab=100352 context=131072 "
        "tied=1",
    ),
    "granitehybrid": _family(
        "Granite 4.0 H Micro",
        "granitehybrid layers=40 embd=2048 ff=8192 heads=32 kv_heads=8 vocab=100352 "
        "context=131072 tied=1 full_layers=5,15,25,35 conv=4 inner=4096 state=128 state_heads=64 "
        "groups=1",
        "full_layers=1,3 inner=512 state=64 state_heads=8",
    ),
    "lfm2": _family(
        "LFM2 1.2B",
        "lfm2 layers=16 embd=2048 ff=8192 heads=32 kv_heads=8 vocab=65536 context=128000 tied=1 "
        "full_layers=2,5,8,10,12,14 conv=3",
        "full_layers=1,3",
    ),
}


def header(name: str, *, small: bool = False) -> Header:
    """Of a family's file, without its vocabulary."""
    family = FAMILIES[name]
    shape = family.small if small else family.full
    return synthetic_header.build(shape, family.quantisation)


def write_ghost(shape: CatalogShape | Header, quantisation: str, path: Path) -> Header:
    """The header that was written."""
    if isinstance(shape, CatalogShape):
        shape = synthetic_header.build(shape, quantisation)
    begins = writer.serialize_header(shape)
    path.write_bytes(begins)
    os.truncate(path, len(begins) + writer.data_size(shape))
    return shape
