"""Catalogue entries: models with the numbers of their published configuration, and pairs."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Literal, get_args

from localspec import paths
from localspec.lazy_dataclass import dataclass
from localspec.models.reference import parse_file_name

UseCase = Literal["chat", "code", "writing", "documents"]
ModelKind = Literal["model", "eagle3", "mtp", "dflash", "dspark"]
PairStatus = Literal["verified", "reported", "untested"]
Tier = Literal["current", "good", "old"]

USE_CASES: tuple[UseCase, ...] = get_args(UseCase)
_QUANTIZATION = re.compile(r"[-._](I?Q[1-8](_[A-Z0-9]+)*|MXFP4(_MOE)?|BF16|F16|F32)(?=[-.]|\Z)")
TIERS: tuple[Tier, ...] = get_args(Tier)
"""The best first."""
MEMORY_KINDS = ("attention", "swa", "hybrid-rollback", "hybrid-checkpoint")
MIXERS = {
    "mamba2": "mamba2", "granitehybrid": "mamba2", "qwen35": "delta", "qwen35moe": "delta",
    "lfm2": "shortconv", "lfm2moe": "shortconv",
}  # fmt: skip
"""The kind of layers without attention, by architecture."""
_MIXER_FIELDS = {
    "mamba2": ("conv", "inner", "state", "state_heads", "groups"),
    "delta": ("conv", "state", "state_heads", "groups", "full_every"),
    "shortconv": ("conv",),
}
_EXPERTS = ("heads", "experts", "experts_used")
_REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "mistral3", "smollm3", "granite", "qwen2", "qwen3"), ("heads",)),
    **dict.fromkeys(("gemma2", "gemma3", "phi3", "granitehybrid", "qwen35", "lfm2"), ("heads",)),
    "qwen3moe": _EXPERTS,
    "gpt-oss": (*_EXPERTS, "window", "head_dim"),
    "gemma4": ("heads", "window", "sliding_head_dim", "head_dim"),
    "deepseek2": (*_EXPERTS, "expert_ff", "shared_ff", "kv_rank", "head_dim", "value_dim"),
    "mamba2": (),
    "qwen35moe": (*_EXPERTS, "expert_ff", "shared_ff"),
    "lfm2moe": (*_EXPERTS, "expert_ff"),
}
"""By supported architecture, beside those of its mixer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogShape:
    """0 or empty: the model has no such part."""

    architecture: str  # In llama.cpp's spelling.
    layers: int
    embd: int
    vocab: int
    ff: int = 0
    context: int = 4096  # Trained context length.
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0  # Of queries and keys; default: `embd / heads`.
    value_dim: int = 0  # Of values; default: `head_dim`.
    rope_dim: int = 0  # Rotated dimensions of a head; default: all.
    tied: bool = False  # One matrix for embedding and output.
    rope_factors: bool = False  # The file has a table of rotation frequencies.
    experts: int = 0
    experts_used: int = 0
    expert_ff: int = 0
    shared_ff: int = 0  # Total width of the shared experts.
    dense_layers: int = 0  # Layers before the first one with experts.
    window: int = 0  # Tokens of the sliding attention window.
    full_every: int = 0
    """Every n-th layer has full attention; the others have a window or are recurrent."""
    full_layers: tuple[int, ...] = ()
    """The layers with full attention, if `full_every` does not describe them."""
    sliding_head_dim: int = 0  # Of layers with a window, if it differs.
    full_kv_heads: int = 0  # Of layers with full attention, if it differs.
    shared_kv_layers: int = 0  # Last layers, which read the keys and values of earlier ones.
    shared_kv_ff: int = 0  # Feed-forward width of those layers, if it differs.
    keys_as_values: bool = False  # Layers with full attention have one matrix for keys and values.
    layer_embd: int = 0  # Width of the per-layer embeddings.
    q_rank: int = 0
    kv_rank: int = 0  # Width of the compressed keys and values (MLA).
    conv: int = 0  # Kernel size of a recurrent layer's convolution.
    inner: int = 0
    state: int = 0
    state_heads: int = 0  # Heads of a recurrent layer, or its time step rank.
    groups: int = 0
    mtp_layers: int = 0  # MTP layers, after the others.

    @property
    def mixer(self) -> str:
        return MIXERS.get(self.architecture, "")

    @property
    def key_dim(self) -> int:
        return self.head_dim or (self.embd // self.heads if self.heads else 0)

    def has_full_attention(self, layer: int) -> bool:
        """True for every layer if neither `full_every` nor `full_layers` is set."""
        if self.full_layers:
            return layer in self.full_layers
        return not self.full_every or (layer + 1) % self.full_every == 0

    def has_attention(self, layer: int) -> bool:
        """False for recurrent layers."""
        is_attention = not self.mixer or self.has_full_attention(layer)
        return layer >= self.layers or (self.heads > 0 and is_attention)

    def n_head_kv(self, layer: int) -> int:
        if not self.has_attention(layer):
            return 0
        full = self.full_kv_heads if self.has_full_attention(layer) else 0
        return full or self.kv_heads or self.heads

    def n_ff(self, layer: int) -> int:
        shares_kv = layer >= self.layers - self.shared_kv_layers
        return (self.shared_kv_ff if shares_kv else 0) or self.ff

    def check(self) -> None:
        """Raise ValueError if the architecture is not supported, or the shape is inconsistent."""
        heads, kv_heads = self.heads or 1, self.kv_heads or self.heads or 1
        last_full = max(self.full_layers, default=0)
        has_rope = 0 < self.rope_dim < self.head_dim
        is_deepseek = self.architecture == "deepseek2"
        if not self.architecture:
            raise ValueError("it needs the key architecture")
        if self.architecture not in _REQUIRED_FIELDS:
            raise ValueError(f"the architecture {self.architecture} is not supported")
        required = [*_REQUIRED_FIELDS[self.architecture], *_MIXER_FIELDS.get(self.mixer, ())]
        if not self.experts and self.architecture != "mamba2":
            required.append("ff")
        if missing := [name for name in required if not getattr(self, name)]:
            raise ValueError(f"{self.architecture} needs {', '.join(missing)}")
        contradictions = {
            "the heads do not divide the width": self.embd % heads > 0 and not self.head_dim,
            "kv_heads do not divide the heads": heads % kv_heads > 0,
            "more experts are used than there are": self.experts_used > self.experts,
            "shared_kv_layers is not below layers": self.shared_kv_layers >= self.layers,
            "full_layers names a layer beyond layers": last_full >= self.layers,
            "rope_dim is not below head_dim": self.kv_rank > 0 and not has_rope,
            "the groups do not divide the inner width": self.inner % (self.groups or 1) > 0,
            "shared_ff is not a multiple of expert_ff": is_deepseek
            and self.shared_ff % (self.expert_ff or 1) > 0,
        }
        for contradiction, applies in contradictions.items():
            if applies:
                raise ValueError(contradiction)


@dataclass(frozen=True, slots=True)
class MakerSampling:
    """What the makers of a model suggest, as names and values of sampling parameters."""

    id: str
    source: str
    plain: tuple[tuple[str, float], ...] = ()
    thinking: tuple[tuple[str, float], ...] = ()
    """For answers that begin with thinking."""


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model file of a repository, or a bundled one; None is unknown."""

    id: str
    title: str
    repo: str | None = None
    file: str = ""
    bytes: int | None = None
    about: int | None = None  # Upper bound of the size, from a published, rounded one.
    sha256: str | None = None
    revision: str | None = None
    package: str | None = None  # `name==version` of a Python package that contains the same file.
    licence: str | None = None
    family: str = ""
    architecture: str | None = None
    memory: str | None = None
    parameters: int | None = None
    active: int | None = None  # Parameters read for one token, for a mixture of experts.
    context: int | None = None
    shape: CatalogShape | None = None
    shape_source: str = ""
    kind: ModelKind = "model"
    use: tuple[UseCase, ...] = ()
    released: str = ""  # A date, or its beginning: 2026-03-01, 2026-07.
    tier: Tier = "good"
    """Its standing in the field: an opinion, whose source the catalogue states."""
    sampling: MakerSampling | None = None
    note: str = ""

    @property
    def size(self) -> int | None:
        """The exact size in bytes, else the upper bound."""
        return self.bytes if self.bytes is not None else self.about

    @property
    def quantization(self) -> str:
        """From the file's name, as Q4_K_M; may be empty."""
        stem = parse_file_name(self.file).stem.upper()
        return found[1] if (found := _QUANTIZATION.search(stem)) else ""

    @property
    def path(self) -> Path | None:
        """The path of a bundled file; None for a file of a repository."""
        return paths.find_bundled(self.file) if self.repo is None else None


@dataclass(frozen=True, slots=True)
class PairSettings:
    """A pair's recommended settings; None means the program's default."""

    draft_max: int | None = None
    ctx: int | None = None
    temperature: float | None = None
    sampling: MakerSampling | None = None  # Of the target.


@dataclass(frozen=True, slots=True)
class CatalogPair:
    id: str
    title: str
    target: CatalogModel
    draft: CatalogModel | None = None
    spec: str = "auto"
    why: str = ""
    use: tuple[UseCase, ...] = ()
    status: PairStatus = "untested"
    source: str = ""
    note: str = ""
    settings: PairSettings = field(default=PairSettings())

    @property
    def draft_kind(self) -> str:
        """`model`, `lookup` without a draft, or the kind of head."""
        own_head = "mtp" if self.spec == "mtp" else "lookup"
        return self.draft.kind if self.draft else own_head

    @property
    def size(self) -> int | None:
        """Bytes of both files; None if one is unknown."""
        sizes = [model.size for model in (self.target, self.draft) if model]
        return None if None in sizes else sum(size for size in sizes if size)
