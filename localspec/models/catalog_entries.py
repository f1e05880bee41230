"""Catalogue entries: models, with their published configuration, and pairs."""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from localspec import paths
from localspec.models.gguf import architectures
from localspec.models.gguf.validation import MAX_EXPERTS, MAX_LAYERS
from localspec.models.reference import is_model, parse_file_name

UseCase = Literal["chat", "code", "writing", "documents"]
PairStatus = Literal["verified", "reported", "untested"]
Tier = Literal["current", "good", "old"]
Sight = Literal["image"]
"""What a model sees; a video would be another word."""

USE_CASES: tuple[UseCase, ...] = get_args(UseCase)
_QUANTIZATION = re.compile(
    r"[-._]((UD-)?(I?Q[1-8](_[A-Z0-9]+)*|MXFP4(_MOE)?|BF16|F16|F32))(?=[-.]|\Z)"
)
TIERS: tuple[Tier, ...] = get_args(Tier)
"""The best first."""
_ARCHITECTURES = (
    architectures.ATTENTION_ONLY | architectures.RECURRENT | architectures.HYBRID
)


# Ranges of what a catalogue file states.
Dimension = Annotated[int, Meta(ge=1, le=10**9)]
LayerCount = Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
LayerIndex = Annotated[int, Meta(ge=0, lt=MAX_LAYERS)]
LayerPattern = Annotated[str, Meta(min_length=1, max_length=300)]
ExpertCount = Annotated[int, Meta(ge=1, le=MAX_EXPERTS)]
TableSize = Annotated[int, Meta(ge=0, lt=10**15)]


class CatalogShape(Struct, frozen=True, kw_only=True):
    """The dimensions of a model. 0 or empty, the default: it has no such part."""

    architecture: str  # In llama.cpp's spelling.
    layers: LayerCount
    embd: Dimension
    vocab: Dimension
    ff: Dimension = 0
    context: Dimension = 4096  # Trained context length.
    heads: Dimension = 0
    kv_heads: Dimension = 0
    head_dim: Dimension = 0  # Of queries and keys; default: `embd / heads`.
    value_dim: Dimension = 0  # Of values; default: `head_dim`.
    rope_dim: Dimension = 0  # Rotated dimensions of a head; default: all.
    tied: bool = False  # One matrix for embedding and output.
    rope_factors: bool = False  # The file has a table of rotation frequencies.
    experts: ExpertCount = 0
    experts_used: ExpertCount = 0
    expert_ff: Dimension = 0
    shared_ff: Dimension = 0  # Total width of the shared experts.
    dense_layers: LayerCount = 0  # Layers before the first one with experts.
    window: Dimension = 0  # Tokens of the sliding attention window.
    full_every: Dimension = 0
    """Every n-th layer has full attention; the others have a window or are recurrent.
    """
    full_layers: tuple[LayerIndex, ...] = ()
    """The layers with full attention, if `full_every` does not describe them."""
    pattern: LayerPattern = ""
    """The part of each layer where it has one.

    M is recurrent, * attention, E experts, - dense.
    """
    sliding_head_dim: Dimension = 0  # Of layers with a window, if it differs.
    full_kv_heads: Dimension = 0  # Of layers with full attention, if it differs.
    # Last layers, which read the keys and values of earlier ones.
    shared_kv_layers: LayerCount = 0
    shared_kv_ff: Dimension = 0  # Feed-forward width of those layers, if it differs.
    # Layers with full attention have one matrix for keys and values.
    keys_as_values: bool = False
    layer_embd: Dimension = 0  # Width of the per-layer embeddings.
    q_rank: Dimension = 0
    kv_rank: Dimension = 0  # Width of the compressed keys and values (MLA).
    conv: Dimension = 0  # Kernel size of a recurrent layer's convolution.
    inner: Dimension = 0
    state: Dimension = 0
    state_heads: Dimension = 0  # Heads of a recurrent layer, or its time step rank.
    groups: Dimension = 0
    mtp_layers: LayerCount = 0  # MTP layers, after the others.
    tables: TableSize = 0  # Parameters of further tables, which stay in RAM.

    @property
    def key_dim(self) -> int:
        if self.head_dim or not self.heads:
            return self.head_dim
        return self.embd // self.heads

    def layer_kind(self, layer: int) -> str:
        """As in `pattern`; a layer with a window is "w"."""
        if self.pattern or layer >= self.layers:
            return self.pattern[layer : layer + 1] or "*"
        if self.full_layers:
            is_full = layer in self.full_layers
        elif self.full_every:
            # With full_every 4: layers 3, 7, 11, …
            is_full = (layer + 1) % self.full_every == 0
        else:
            is_full = True
        if self.conv:
            return "*" if is_full and self.heads else "M"
        return "*" if is_full else "w"

    def has_attention(self, layer: int) -> bool:
        return self.layer_kind(layer) in "*w"

    def n_experts(self, layer: int) -> int:
        if layer < self.dense_layers:
            return 0
        if self.pattern and layer < self.layers and self.pattern[layer] != "E":
            return 0
        return self.experts

    def n_head_kv(self, layer: int) -> int:
        if not self.has_attention(layer):
            return 0
        if self.full_kv_heads and self.layer_kind(layer) == "*":
            return self.full_kv_heads
        return self.kv_heads or self.heads

    def n_ff(self, layer: int) -> int:
        """Of the dense part."""
        if self.pattern and self.pattern[layer : layer + 1] != "-":
            return 0
        shares_kv = layer >= self.layers - self.shared_kv_layers
        if shares_kv and self.shared_kv_ff:
            return self.shared_kv_ff
        return self.ff

    def check(self) -> None:
        """Raise ValueError if the architecture is unknown or a number contradicts."""
        heads = self.heads or 1
        kv_heads = self.kv_heads or heads
        if self.architecture not in _ARCHITECTURES:
            raise ValueError(f"the architecture {self.architecture} is not supported")
        if self.heads and not self.ff and not self.experts:
            raise ValueError(f"{self.architecture} needs ff")
        if self.embd % heads and not self.head_dim:
            raise ValueError("the heads do not divide the width")
        if heads % kv_heads:
            raise ValueError("kv_heads do not divide the heads")
        if self.pattern:
            has_all_layers = len(self.pattern) == self.layers
            if not has_all_layers or not set(self.pattern) <= set("M*E-"):
                raise ValueError("pattern is not one of M * E - for each layer")
        if self.kv_rank and not 0 < self.rope_dim < self.head_dim:
            raise ValueError("rope_dim is not below head_dim")


class MakerSampling(Struct, frozen=True):
    """Sampling parameters that a model's makers suggest, by name."""

    id: str
    source: str
    plain: tuple[tuple[str, float], ...] = ()
    thinking: tuple[tuple[str, float], ...] = ()
    """For answers that begin with thinking."""


class CatalogProjector(Struct, frozen=True):
    """The file of a repository with which a model sees or hears (mmproj)."""

    repo: str
    file: str
    bytes: int | None = None  # None: only the hub knows it.
    sha256: str | None = None


class CatalogModel(Struct, frozen=True):
    """A model file of a repository, or a bundled one; None is unknown."""

    id: str
    title: str
    repo: str | None = None
    file: str = ""
    bytes: int | None = None
    about: int | None = None  # Upper bound of the size, from a published, rounded one.
    sha256: str | None = None
    revision: str | None = None
    # `name==version` of a Python package that contains the same file.
    package: str | None = None
    licence: str | None = None
    family: str = ""
    architecture: str | None = None
    parameters: int | None = None
    # Parameters read for one token, for a mixture of experts.
    active: int | None = None
    context: int | None = None
    shape: CatalogShape | None = None
    shape_source: str = ""
    kind: str = "model"
    """`model`, or the kind of head."""
    use: tuple[UseCase, ...] = ()  # The best first: the last of four is secondary.
    released: str = ""  # A date, or its beginning: 2026-03-01, 2026-07.
    tier: Tier = "good"
    """Its standing in the field: an opinion, whose source the catalogue states."""
    thinks: bool = False  # It thinks before it answers, unless that is switched off.
    sampling: MakerSampling | None = None
    note: str = ""
    type: str = ""  # Its quantisation, if only that is known of the file.
    projector: CatalogProjector | None = None  # Of all its quantisations.
    sees: tuple[Sight, ...] = ()
    """What it sees with its projector; empty if it sees nothing, or if that is unknown."""
    hears: bool = False
    files: tuple[CatalogModel, ...] = ()
    """The same model in other quantisations; their ids are `id:TYPE`."""

    @property
    def size(self) -> int | None:
        """The exact size in bytes, else the upper bound."""
        return self.bytes if self.bytes is not None else self.about

    @property
    def quantization(self) -> str:
        """As UD-Q4_K_XL; may be empty."""
        return self.type or quantization_of(self.file)

    @property
    def path(self) -> Path | None:
        """The path of a bundled file; None for a file of a repository."""
        return paths.find_bundled(self.file) if self.repo is None else None

    def is_file(self, repo: str | None, file: str | None) -> bool:
        """Whether a file of a repository is this one."""
        if self.repo is None or repo != self.repo:
            return False
        if self.file:
            return file == self.file
        if self.kind == "model" and not is_model(file or ""):
            return False  # A head in that quantisation, beside its target.
        return quantization_of(file or "") == self.type

    def find_type(self, name: str) -> CatalogModel | None:
        """This model in a quantisation: UD-Q4_K_XL, or without UD-, in any case."""
        for wanted in (name.lower(), f"ud-{name.lower()}"):
            for model in (self, *self.files):
                if model.quantization.lower() == wanted:
                    return model
        return None


def own_id(id_: str) -> str:
    """Without a quantisation."""
    return id_.partition(":")[0]


def quantization_of(file: str) -> str:
    """From the file's name, as UD-Q4_K_XL; may be empty."""
    _, type_ = split_quantization(file)
    return type_


def split_quantization(file: str) -> tuple[str, str]:
    """What a file's name says of the model and of its quantisation, in capitals.

    gemma-4-26B_q4_0-it.gguf is GEMMA-4-26B-IT and Q4_0, which may be empty.
    """
    stem = parse_file_name(file).stem.upper()
    found = _QUANTIZATION.search(stem)
    if found is None:
        return stem, ""
    return stem[: found.start()] + stem[found.end() :], found[1]


def name_pair(
    id_: str, target: str, draft: CatalogModel | None, taken: Container[str]
) -> str:
    """The id of a pair without what is said twice; `taken`: the ids of all pairs.

    gemma-4-e4b+gemma-4-e4b-mtp is gemma-4-e4b+mtp, unless another pair has that id.
    Prompt lookup is no second model, so qwen3-8b+lookup is qwen3-8b.
    """
    if draft is None:
        return id_.removesuffix("+lookup")
    if draft.kind == "model" or id_ != f"{target}+{draft.id}":
        return id_
    short = f"{target}+{draft.id.removeprefix(f'{target}-')}"
    return id_ if short in taken else short


class PairSettings(Struct, frozen=True):
    """A pair's recommended settings; None means the program's default."""

    draft_max: int | None = None
    ctx: int | None = None
    temperature: float | None = None
    sampling: MakerSampling | None = None  # Of the target.


class CatalogPair(Struct, frozen=True):
    id: str
    title: str
    name: str
    """What commands call it, by `name_pair`; it opens the pair, too."""
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
        if self.draft is not None:
            return self.draft.kind
        return "mtp" if self.spec == "mtp" else "lookup"  # A target may have the head.

    def with_target(self, target: CatalogModel) -> CatalogPair:
        """With another quantisation of the target."""
        if target.id == self.target.id:
            return self
        type_ = target.quantization
        return replace(
            self,
            id=f"{self.id}:{type_}",
            title=f"{self.title}, {type_}",
            name=f"{self.name}:{type_}",
            target=target,
        )

    @property
    def size(self) -> int | None:
        """Bytes of both files; None if one is unknown."""
        target_size = self.target.size
        if self.draft is None or target_size is None:
            return target_size
        draft_size = self.draft.size
        return None if draft_size is None else target_size + draft_size
