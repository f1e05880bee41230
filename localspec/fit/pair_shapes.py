"""Shapes of a pair: from headers of local files or of files on the hub, or from the
catalogue.

The catalogue has the numbers of a model, and the size of its file.  The size, without tables, is
spread evenly over the layers.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.errors import LocalspecError, NotFoundError
from localspec.fit import shape
from localspec.fit.shape import (
    GATED_ATTENTION,
    LayerShape,
    ModelShape,
    attention_width,
    feed_forward_width,
    is_repacked,
    refuse_inconsistent,
)
from localspec.models import draft_heads, pair_compatibility
from localspec.models.catalog import CatalogModel, CatalogPair
from localspec.models.catalog_entries import CatalogShape
from localspec.models.gguf import reader
from localspec.models.gguf.architectures import ASSISTANT
from localspec.models.gguf.header import Header
from localspec.models.model_lookup import ModelRequest, ResolvedModel

if TYPE_CHECKING:
    from localspec.models.pull_plan import PullPlanner

ShapeSource = Literal["file", "hub", "shape"]
"""A local file; a hub file of which only the header was fetched; the catalogue."""


class PairMember(Struct, frozen=True):
    name: str
    source: ShapeSource
    shape: ModelShape
    header: Header | None = None  # None: the shape is from the catalogue.
    path: Path | None = None

    @property
    def reference(self) -> str:
        """In a load command: the file, if it is here."""
        return str(self.path or self.name)


class PairShapes(Struct, frozen=True):
    """A pair, or a target without a draft."""

    target: PairMember
    draft: PairMember | None = None

    @property
    def name(self) -> str:
        return (
            f"{self.target.name} + {self.draft.name}"
            if self.draft
            else self.target.name
        )

    @property
    def shapes(self) -> tuple[ModelShape, ModelShape | None]:
        return self.target.shape, self.draft.shape if self.draft else None

    @property
    def headers(self) -> tuple[Header, Header | None] | None:
        """None if a shape is from the catalogue."""
        target, draft = self.target.header, self.draft.header if self.draft else None
        is_known = target is not None and (draft is not None or self.draft is None)
        return (target, draft) if target and is_known else None

    def check_head(self) -> None:
        """Raises IncompatiblePairError if the draft is a head that does not fit the
        target.
        """
        if self.headers and self.draft:
            verdict = pair_compatibility.find_head_mismatch(*self.headers)
            if verdict is not None:
                raise pair_compatibility.incompatible_pair_error(
                    verdict, self.target.name, self.draft.name
                )

    def add_own_head(self) -> PairShapes:
        """With the MTP layer of the target, if it has one."""
        target = self.target
        if target.header is None:
            return (
                PairShapes(target, _own_mtp_layer(target))
                if target.shape.n_mtp
                else self
            )
        has_head = draft_heads.has_own_mtp_layer(target.header)
        return join(target, target) if has_head else self


def from_headers(target: Header, draft: Header | None) -> PairShapes:
    """Raises ModelFileError if the numbers in them are inconsistent."""
    drafting = member("draft", "file", draft) if draft else None
    return join(member("target", "file", target), drafting)


def resolve_shapes(request: ModelRequest, planner: PullPlanner | None) -> PairShapes:
    """From local files, else from the hub if a planner is given, else from the
    catalogue.

    Raises NotFoundError if none has the model, and hub errors.
    """
    target = _resolve_member(request.target, planner)
    return join(
        target,
        _resolve_member(request.draft, planner, target) if request.draft else None,
    )


def from_catalog(pair: CatalogPair) -> PairShapes | None:
    """From the catalogue alone; None for unknown shapes."""
    target = _catalog_member(pair.target)
    if target is None:
        return None
    if pair.spec == "mtp" and pair.draft is None:
        return PairShapes(target, _own_mtp_layer(target))
    draft = _catalog_member(pair.draft, target) if pair.draft else None
    return PairShapes(target, draft) if draft or not pair.draft else None


def _own_mtp_layer(target: PairMember) -> PairMember:
    return replace(target, shape=replace(target.shape, head_kind="mtp"))


def join(target: PairMember, draft: PairMember | None) -> PairShapes:
    """With the draft as the head that it is for this target."""
    if draft is not None and target.header and draft.header:
        head = shape.for_target(draft.shape, target.header, draft.header)
        draft = replace(draft, shape=head)
    return PairShapes(target, draft)


def member(
    name: str, source: ShapeSource, found: Header, path: Path | None = None
) -> PairMember:
    """Raises ModelFileError if the numbers in the header are inconsistent."""
    with refuse_inconsistent():
        return PairMember(name, source, shape.from_header(found), found, path)


def _resolve_member(
    request: ResolvedModel,
    planner: PullPlanner | None,
    target: PairMember | None = None,
) -> PairMember:
    """`target`: that of a head."""
    if (path := request.find_path()) is not None:
        return member(request.name, "file", reader.read_model(path), path)
    known = (
        _catalog_member(request.catalog_model, target)
        if request.catalog_model
        else None
    )
    if planner is not None:
        try:
            return member(
                request.name, "hub", planner.full_header(planner.plan_model(request))
            )
        except LocalspecError:
            if known is None:
                raise
    if known is None:
        what = f"The size of {request.title} is unknown."
        raise NotFoundError(what, "Go online to read its header, or give a local file.")
    return known


def _catalog_member(
    model: CatalogModel, target: PairMember | None = None
) -> PairMember | None:
    if model.path is not None:
        return member(model.id, "file", reader.read(model.path), model.path)
    is_head = model.kind != "model"
    known = shape_from_catalog(model)
    if is_head and target is not None and model.size is not None:
        known = _head_shape(model, model.size, target.shape)
    return PairMember(model.id, "shape", known) if known else None


_VOCABULARY_BYTES = 25  # Of the file's header, per token.
_BITS = {
    "BF16": 16.0, "F16": 16.0, "F32": 32.0, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5": 5.5, "Q4_1": 5.0,
    "MXFP4": 8.5,
}  # fmt: skip
"""Of the token embeddings, by a part of the quantisation's name; of all others 4.5."""
_OUTPUT_BITS = 6.5625  # At least: an output matrix, or tied embeddings, in Q6_K.
_MXFP4_BITS = 4.25
# Of Q8_0, in place of Q6_K if the rows are no multiple of its blocks.
_NARROW_BITS = 8.5
_BLOCK = 256
_WITHOUT_GATE = ("nemotron_h", "nemotron_h_moe", "apertus")  # Two matrices, not three.
_PEAK = 1.4  # The largest matrices of a mixture (Q6_K), relative to its average.


@lru_cache(maxsize=256)
def shape_from_catalog(model: CatalogModel) -> ModelShape | None:
    """None if the entry has no shape or no size."""
    if model.shape is None or model.size is None:
        return None
    return shape_from_numbers(model.shape, model.quantization, model.size)


def shape_from_numbers(
    shape: CatalogShape, quantization: str, n_bytes: int
) -> ModelShape:
    """`n_bytes`: of the file."""
    bits = next((_BITS[name] for name in _BITS if name in quantization), 4.5)
    is_narrow = shape.embd % _BLOCK > 0 and bits < _NARROW_BITS
    output_bits = _NARROW_BITS if is_narrow else max(bits, _OUTPUT_BITS)
    output_type = "Q8_0" if output_bits == _NARROW_BITS else "Q6_K"
    output = int(shape.embd * shape.vocab * output_bits / 8)
    table = (
        output if shape.tied else int(shape.embd * shape.vocab * (bits + is_narrow) / 8)
    )
    table += int(
        (shape.layer_embd * shape.layers * shape.vocab + shape.tables) * bits / 8
    )
    rest = n_bytes - table - output * (not shape.tied) - _VOCABULARY_BYTES * shape.vocab
    # Its experts, in every file of gpt-oss.
    is_mxfp4 = "MXFP4" in quantization or shape.architecture == "gpt-oss"
    layers, is_mostly_dense = _spread(
        shape, rest, bits / _MXFP4_BITS if is_mxfp4 else 1.0
    )
    dense_type = _weight_type(quantization.replace("MXFP4", "Q8_0"))
    inner, channels = _recurrent_widths(shape)
    return ModelShape(
        shape.architecture,
        layers,
        shape.embd,
        shape.vocab,
        shape.context,
        n_mtp=shape.mtp_layers,
        input_bytes=table,
        output_bytes=output * (not shape.tied),
        output_matrix=output,
        output_reads=output,
        is_tied=shape.tied,
        is_table_repacked=is_repacked(output_type, shape.vocab),
        n_swa=shape.window,
        n_expert=shape.experts,
        n_expert_used=shape.experts_used,
        mla_result=shape.heads
        * (shape.kv_rank + shape.value_dim)
        * (shape.kv_rank > 0),
        n_shared_kv=shape.shared_kv_layers,
        n_embd_per_layer=shape.layer_embd,
        n_embd_r=max(0, shape.conv - 1) * (channels or shape.embd),
        n_embd_s=shape.state * inner,
        ssm_inner=inner,
        ssm_channels=channels,
        weight_type="MXFP4" if is_mxfp4 and not is_mostly_dense else dense_type,
    )


_BLOCK_LAYERS, _BLOCK_ROWS = 5, 16  # Of DFlash and DSpark heads, as published.
_REDUCED_VOCABULARY = 32_000  # Tokens that an EAGLE-3 head drafts.


def _head_shape(model: CatalogModel, n_bytes: int, target: ModelShape) -> ModelShape:
    """A head of `n_bytes`: layers like the target's last one with attention.

    A separate MTP layer has embeddings and an output matrix of its own, a Gemma 4
    assistant an output matrix and no KV cache, EAGLE-3 an output matrix for fewer
    tokens; block heads borrow the target's.
    """
    kind, quantization = model.kind, model.quantization
    is_assistant = model.architecture == ASSISTANT
    bits = next((_BITS[name] for name in _BITS if name in quantization), 4.5)
    n_rows = {"mtp": target.n_vocab, "eagle3": _REDUCED_VOCABULARY}.get(kind, 0)
    table = min(int(n_rows * target.n_embd * bits / 8), n_bytes // 2)
    n_input = table if kind == "mtp" and not is_assistant else 0
    is_block = draft_kinds.kinds()[kind].drafts_blocks
    n_layers = _BLOCK_LAYERS if is_block else 1
    weights = (n_bytes - table - n_input) // n_layers
    like = next(layer for layer in reversed(target.layers) if layer.n_head)
    layer = replace(
        like,
        weights=weights,
        experts=0,
        expert_matrix=0,
        matrix=weights // 4,
        is_swa=False,
    )
    if is_assistant:
        layer = replace(layer, has_kv=False)
    architecture = target.architecture if kind == "mtp" else kind
    return ModelShape(
        ASSISTANT if is_assistant else architecture,
        (layer,) * n_layers,
        target.n_embd,
        target.n_vocab,
        target.n_ctx_train,
        n_mtp=int(kind == "mtp"),
        input_bytes=n_input,
        output_bytes=table,
        output_matrix=table,
        output_reads=table,
        weight_type=_weight_type(quantization),
        head_kind=kind,
        head_block=_BLOCK_ROWS if is_block else 0,
        n_target_layers=3 if kind == "eagle3" else n_layers,
    )


def _weight_type(quantization: str) -> str:
    """UD-Q4_K_XL, Q4_K_M: Q4_K."""
    name = quantization.removeprefix("UD-").removesuffix("_MOE")
    return name[:4] if name[2:4] == "_K" else name


def _spread(
    shape: CatalogShape, n_bytes: int, dense_weight: float
) -> tuple[tuple[LayerShape, ...], bool]:
    """The layers, and whether a token reads less of experts than of the rest.

    `dense_weight`: bits of what is no expert, relative to experts.
    """
    layers = [_read_layer(shape, il) for il in range(shape.layers + shape.mtp_layers)]
    # Parameters in place of bytes.
    dense = dense_weight * sum(layer.weights for layer in layers)
    experts = sum(layer.experts for layer in layers)
    scale = n_bytes / (dense + experts)
    weights = int(scale * dense / len(layers))
    peak = scale * (1.0 if dense_weight > 1 else _PEAK)
    sized = (
        replace(
            layer,
            weights=weights,
            matrix=int(layer.matrix * peak * dense_weight),
            experts=int(layer.experts * scale),
            expert_matrix=int(layer.expert_matrix * peak),
        )
        for layer in layers
    )
    return tuple(sized), dense * shape.experts > experts * shape.experts_used


def _recurrent_widths(shape: CatalogShape) -> tuple[int, int]:
    """Of the state's input, and of the convolution's."""
    inner = shape.inner or shape.state * shape.state_heads
    return inner, inner + 2 * shape.groups * shape.state


def _read_layer(shape: CatalogShape, il: int) -> LayerShape:
    """With about as many parameters as the layer has, in place of bytes."""
    embd, heads, expert_ff = shape.embd, shape.heads, shape.expert_ff or shape.ff
    n_expert = shape.n_experts(il)
    has_dense = not n_expert or shape.architecture == "gemma4"
    ff = shape.n_ff(il) if has_dense else shape.shared_ff
    is_fused = shape.architecture == "phi3"  # one matrix for gate and up
    is_swa = shape.window > 0 and shape.layer_kind(il) == "w"
    k = (shape.sliding_head_dim if is_swa else 0) or shape.key_dim
    v, n_head_kv, mla = shape.value_dim or k, shape.n_head_kv(il), 0
    wide = heads * k * (1 + (shape.architecture in GATED_ATTENTION))
    if shape.kv_rank:  # `head_dim` and `value_dim` are those of the uncompressed heads
        k, v, n_head_kv, mla = (
            shape.kv_rank + shape.rope_dim,
            shape.kv_rank,
            1,
            k + shape.kv_rank,
        )
    widths = (heads, n_head_kv, k, v)
    has_attention, is_recurrent = shape.has_attention(il), shape.layer_kind(il) == "M"
    if is_recurrent:
        wide = sum(_recurrent_widths(shape)) or 3 * embd
    elif not has_attention:
        wide = 0
    expert_matrix = n_expert * embd * expert_ff
    n_matrices = 4 if is_fused else 2 if shape.architecture in _WITHOUT_GATE else 3
    n_weights = min(3, n_matrices)
    return LayerShape(
        # A router is in F32.
        embd * (2 * wide + 2 * n_head_kv * k + n_weights * ff + 6 * n_expert),
        n_weights * expert_matrix,
        embd * max(ff * (1 + is_fused), wide),
        expert_matrix * (2 if shape.architecture == "gemma4" else 1),
        heads if has_attention else 0,
        n_head_kv,
        k,
        v,
        attention_width(shape.architecture, widths, mla=mla, is_fused=is_fused),
        feed_forward_width(
            embd, n_matrices * ff, shape.experts_used, expert_ff, n_expert
        ),
        is_swa,
        is_recurrent,
        has_attention
        and not shape.layers - shape.shared_kv_layers <= il < shape.layers,
    )
