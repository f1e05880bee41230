"""The shapes of a pair, from the headers of its files or from the catalogue.

A header is read from a local file, or from a file on the hub.  The catalogue has the
numbers of a model, and the size of its file.  The size, without tables, is spread
evenly over the layers.
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
    AttentionHeads,
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
from localspec.models.gguf.architectures import ASSISTANTS, find_architecture
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
        """For a pair that is none of the catalogue's, which has names of its own."""
        if self.draft is None:
            return self.target.name
        if self.draft.name == self.target.name:
            return f"{self.target.name} with its own MTP layer"
        return f"{self.target.name} + {self.draft.name}"

    @property
    def shapes(self) -> tuple[ModelShape, ModelShape | None]:
        if self.draft is None:
            return self.target.shape, None
        return self.target.shape, self.draft.shape

    @property
    def headers(self) -> tuple[Header, Header | None] | None:
        """None if a shape is from the catalogue."""
        target = self.target.header
        if target is None:
            return None
        if self.draft is None:
            return target, None
        draft = self.draft.header
        if draft is None:
            return None
        return target, draft

    def check_head(self) -> None:
        """Raises IncompatiblePairError for a head that was made for another target."""
        if self.headers is None or self.draft is None:
            return
        verdict = pair_compatibility.find_head_mismatch(*self.headers)
        if verdict is not None:
            raise pair_compatibility.incompatible_pair_error(
                verdict, self.target.name, self.draft.name
            )

    def add_own_head(self) -> PairShapes:
        """With the MTP layer of the target, if it has one."""
        target = self.target
        if target.header is None:
            if target.shape.n_mtp:
                return PairShapes(target, _own_mtp_layer(target))
            return self
        if draft_heads.has_own_mtp_layer(target.header):
            return join(target, target)
        return self


def from_headers(target: Header, draft: Header | None) -> PairShapes:
    """Raises ModelFileError if the numbers in them are inconsistent."""
    drafting = None
    if draft is not None:
        drafting = member("draft", "file", draft)
    return join(member("target", "file", target), drafting)


def resolve_shapes(request: ModelRequest, planner: PullPlanner | None) -> PairShapes:
    """From local files, else from the hub, else from the catalogue.

    Without a planner the hub is not asked.  Raises NotFoundError if none has the model,
    and hub errors.
    """
    target = _resolve_member(request.target, planner)
    draft = None
    if request.draft is not None:
        draft = _resolve_member(request.draft, planner, target)
    return join(target, draft)


def from_catalog(pair: CatalogPair) -> PairShapes | None:
    """From the catalogue alone; None for unknown shapes."""
    target = _catalog_member(pair.target)
    if target is None:
        return None
    if pair.spec == "mtp" and pair.draft is None:
        return PairShapes(target, _own_mtp_layer(target))
    if pair.draft is None:
        return PairShapes(target)
    draft = _catalog_member(pair.draft, target)
    if draft is None:
        return None
    return PairShapes(target, draft)


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
        return PairMember(
            name, source, shape=shape.from_header(found), header=found, path=path
        )


def _resolve_member(
    request: ResolvedModel,
    planner: PullPlanner | None,
    target: PairMember | None = None,
) -> PairMember:
    """`target`: that of a head."""
    path = request.find_path()
    if path is not None:
        return member(request.name, "file", reader.read_model(path), path)
    known = None
    if request.catalog_model is not None:
        known = _catalog_member(request.catalog_model, target)
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
    """`target`: that of a head.  None if the shape is unknown."""
    if model.path is not None:
        return member(model.id, "file", reader.read(model.path), model.path)
    known = shape_from_catalog(model)
    if model.kind != "model" and target is not None and model.size is not None:
        known = _head_shape(model, model.size, target.shape)
    if known is None:
        return None
    return PairMember(model.id, "shape", known)


# --- Shapes from the catalogue.

_VOCABULARY_BYTES = 25  # Of the file's header, per token.
_BITS = {
    "BF16": 16.0,
    "F16": 16.0,
    "F32": 32.0,
    "Q8_0": 8.5,
    "Q6_K": 6.5625,
    "Q5": 5.5,
    "Q4_1": 5.0,
    "MXFP4": 8.5,
}
"""Bits of a weight of the token embeddings, by a part of the quantisation's name."""
_OTHER_BITS = 4.5
_OUTPUT_BITS = 6.5625  # At least: an output matrix, or tied embeddings, in Q6_K.
_MXFP4_BITS = 4.25
_NARROW_BITS = 8.5
"""Of Q8_0, in place of Q6_K if the rows are no multiple of its blocks."""
_BLOCK = 256
_PEAK = 1.4
"""Bytes of the largest matrices of a mixture (Q6_K), relative to its average."""
_BLOCK_LAYERS = 5  # Of DFlash and DSpark heads, as published.
_BLOCK_ROWS = 16
_EAGLE3_STATES = 3  # Hidden states of the target that an EAGLE-3 head reads.
_REDUCED_VOCABULARY = 32_000  # Tokens that an EAGLE-3 head drafts.


@lru_cache(maxsize=256)
def shape_from_catalog(model: CatalogModel) -> ModelShape | None:
    """None if the entry has no shape or no size."""
    if model.shape is None or model.size is None:
        return None
    return shape_from_numbers(model.shape, model.quantization, model.size)


def _embedding_bits(quantization: str) -> float:
    for name, bits in _BITS.items():
        if name in quantization:
            return bits
    return _OTHER_BITS


def shape_from_numbers(
    shape: CatalogShape, quantization: str, n_bytes: int
) -> ModelShape:
    """The shape of a file of `n_bytes`.

    Tables have the bits that their quantisation usually gives them; the rest of the
    file is spread over the layers.
    """
    # The tables: token embeddings, output matrix and embeddings by layer.
    bits = _embedding_bits(quantization)
    table_bits = bits
    output_bits = max(bits, _OUTPUT_BITS)
    output_type = "Q6_K"
    if shape.embd % _BLOCK and bits < _NARROW_BITS:
        table_bits = bits + 1
        output_bits = _NARROW_BITS
    if output_bits == _NARROW_BITS:
        output_type = "Q8_0"
    n_table = shape.embd * shape.vocab
    output_matrix = int(n_table * output_bits / 8)
    if shape.tied:
        input_bytes = output_matrix
        output_bytes = 0
    else:
        input_bytes = int(n_table * table_bits / 8)
        output_bytes = output_matrix
    n_layer_tables = shape.layer_embd * shape.layers * shape.vocab
    input_bytes += int((n_layer_tables + shape.tables) * bits / 8)

    # The layers.
    traits = find_architecture(shape.architecture)
    has_mxfp4 = "MXFP4" in quantization or traits.has_mxfp4_experts
    dense_weight = 1.0
    if has_mxfp4:
        dense_weight = bits / _MXFP4_BITS
    rest = n_bytes - input_bytes - output_bytes - _VOCABULARY_BYTES * shape.vocab
    layers, is_mostly_dense = _spread(shape, rest, dense_weight)

    weight_type = _weight_type(quantization.replace("MXFP4", "Q8_0"))
    if has_mxfp4 and not is_mostly_dense:
        weight_type = "MXFP4"
    mla_result = 0
    if shape.kv_rank:
        mla_result = shape.heads * (shape.kv_rank + shape.value_dim)
    inner, channels = _recurrent_widths(shape)
    convolution = 0
    if shape.conv:
        n_channels = channels or shape.embd
        convolution = (shape.conv - 1) * n_channels
    return ModelShape(
        architecture=shape.architecture,
        layers=layers,
        n_embd=shape.embd,
        n_vocab=shape.vocab,
        n_ctx_train=shape.context,
        n_mtp=shape.mtp_layers,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        output_matrix=output_matrix,
        output_reads=output_matrix,
        is_tied=shape.tied,
        is_table_repacked=is_repacked(output_type, shape.vocab),
        n_swa=shape.window,
        n_expert=shape.experts,
        n_expert_used=shape.experts_used,
        mla_result=mla_result,
        n_shared_kv=shape.shared_kv_layers,
        n_embd_per_layer=shape.layer_embd,
        n_embd_r=convolution,
        n_embd_s=shape.state * inner,
        ssm_inner=inner,
        ssm_channels=channels,
        weight_type=weight_type,
    )


def _weight_type(quantization: str) -> str:
    """UD-Q4_K_XL, Q4_K_M: Q4_K."""
    name = quantization.removeprefix("UD-").removesuffix("_MOE")
    if name[2:4] == "_K":
        return name[:4]
    return name


def _spread(
    shape: CatalogShape, n_bytes: int, dense_weight: float
) -> tuple[tuple[LayerShape, ...], bool]:
    """The layers, and whether a token reads less of experts than of the rest.

    `dense_weight`: bits of what is no expert, relative to experts.  Every layer gets
    the mean of what is no expert: the count of a single layer is rough, and files give
    some layers more bits.  Example: 100 bytes for two layers with 20 and 10 parameters
    of attention and 10 and 10 of experts, with a `dense_weight` of 1: a parameter has 2
    bytes, so each layer gets 30 bytes of attention, and 20 of experts.
    """
    layers = [_count_layer(shape, il) for il in range(shape.layers + shape.mtp_layers)]
    dense = dense_weight * sum(layer.weights for layer in layers)
    experts = sum(layer.experts for layer in layers)
    scale = n_bytes / (dense + experts)  # Bytes of a parameter.
    peak = scale
    if dense_weight <= 1:
        peak = scale * _PEAK
    sized = []
    for layer in layers:
        in_bytes = replace(
            layer,
            weights=int(scale * dense / len(layers)),
            matrix=int(layer.matrix * peak * dense_weight),
            experts=int(layer.experts * scale),
            expert_matrix=int(layer.expert_matrix * peak),
        )
        sized.append(in_bytes)
    is_mostly_dense = dense * shape.experts > experts * shape.experts_used
    return tuple(sized), is_mostly_dense


def _recurrent_widths(shape: CatalogShape) -> tuple[int, int]:
    """Of the state's input, and of the convolution's."""
    inner = shape.inner or shape.state * shape.state_heads
    return inner, inner + 2 * shape.groups * shape.state


def _count_layer(shape: CatalogShape, il: int) -> LayerShape:
    """A layer with about its number of parameters in place of bytes."""
    embd = shape.embd
    traits = find_architecture(shape.architecture)
    is_fused = traits.has_fused_matrices
    is_recurrent = shape.layer_kind(il) == "M"
    is_swa = shape.window > 0 and shape.layer_kind(il) == "w"

    # Attention, or what a recurrent layer has in its place.
    n_head = 0
    if shape.has_attention(il):
        n_head = shape.heads
    query_width = shape.key_dim
    if is_swa and shape.sliding_head_dim:
        query_width = shape.sliding_head_dim
    all_queries_width = shape.heads * query_width
    if traits.has_gated_attention:
        all_queries_width *= 2
    # Keys and values as they are cached.
    n_head_kv = shape.n_head_kv(il)
    key_width = query_width
    value_width = shape.value_dim or key_width
    compressed_query = 0
    if shape.kv_rank:  # The catalogue's head widths are those before compression.
        compressed_query = query_width + shape.kv_rank
        n_head_kv = 1
        key_width = shape.kv_rank + shape.rope_dim
        value_width = shape.kv_rank
    mixer_width = 0
    if is_recurrent:
        mixer_width = sum(_recurrent_widths(shape)) or 3 * embd
    elif n_head:
        mixer_width = all_queries_width
    first_shared = shape.layers - shape.shared_kv_layers
    shares_cache = first_shared <= il < shape.layers

    # The feed-forward part, and experts.
    n_expert = shape.n_experts(il)
    ff = shape.shared_ff
    if not n_expert or traits.has_dense_beside_experts:
        ff = shape.n_ff(il)
    n_matrices = 3  # Gate, up and down.
    n_products = 3
    widest_ff = ff
    if is_fused:
        n_products = 4  # That of gate and up is copied in two parts.
        widest_ff = 2 * ff
    elif not traits.has_gated_ff:
        n_matrices = 2
        n_products = 2
    expert_ff = shape.expert_ff or shape.ff
    n_expert_weights = n_expert * embd * expert_ff
    expert_matrix = n_expert_weights
    if traits.has_fused_expert_gate:
        expert_matrix *= 2
    router = 6 * n_expert  # In F32.

    width = 2 * mixer_width + 2 * n_head_kv * key_width + n_matrices * ff + router
    return LayerShape(
        weights=embd * width,
        experts=n_matrices * n_expert_weights,
        matrix=embd * max(widest_ff, mixer_width),
        expert_matrix=expert_matrix,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head_k=key_width,
        n_embd_head_v=value_width,
        qkv=attention_width(
            shape.architecture,
            AttentionHeads(
                n_head=shape.heads,
                n_head_kv=n_head_kv,
                key_width=key_width,
                value_width=value_width,
            ),
            mla=compressed_query,
            is_fused=is_fused,
        ),
        ff=feed_forward_width(
            embd,
            dense=n_products * ff,
            n_used=shape.experts_used,
            expert_ff=expert_ff,
            n_expert=n_expert,
        ),
        is_swa=is_swa,
        is_recurrent=is_recurrent,
        has_kv=n_head > 0 and not shares_cache,
    )


def _head_shape(model: CatalogModel, n_bytes: int, target: ModelShape) -> ModelShape:
    """A head of `n_bytes`: layers like the target's last one with attention.

    A separate MTP layer has embeddings and an output matrix of its own, a Gemma 4
    assistant an output matrix and no KV cache, EAGLE-3 an output matrix for fewer
    tokens; block heads borrow the target's.
    """
    kind = model.kind
    own_architecture = model.architecture or ""
    is_assistant = own_architecture in ASSISTANTS

    n_layers = 1
    n_block_rows = 0
    if draft_kinds.kinds()[kind].drafts_blocks:
        n_layers = _BLOCK_LAYERS
        n_block_rows = _BLOCK_ROWS

    architecture = kind
    n_target_layers = n_layers
    n_output_rows = 0
    n_mtp = 0
    if kind == "mtp":
        architecture = target.architecture
        n_output_rows = target.n_vocab
        n_mtp = 1
    elif kind == "eagle3":
        n_target_layers = _EAGLE3_STATES
        n_output_rows = _REDUCED_VOCABULARY

    bits = _embedding_bits(model.quantization)
    n_output_weights = n_output_rows * target.n_embd
    output_bytes = min(int(n_output_weights * bits / 8), n_bytes // 2)
    input_bytes = 0
    if is_assistant:
        architecture = own_architecture
    elif kind == "mtp":
        input_bytes = output_bytes
    weights = (n_bytes - output_bytes - input_bytes) // n_layers
    like = next(layer for layer in reversed(target.layers) if layer.n_head)
    layer = replace(
        like,
        weights=weights,
        experts=0,
        expert_matrix=0,
        matrix=weights // 4,
        is_swa=False,
        has_kv=like.has_kv and not is_assistant,
    )
    return ModelShape(
        architecture=architecture,
        layers=(layer,) * n_layers,
        n_embd=target.n_embd,
        n_vocab=target.n_vocab,
        n_ctx_train=target.n_ctx_train,
        n_mtp=n_mtp,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        output_matrix=output_bytes,
        output_reads=output_bytes,
        weight_type=_weight_type(model.quantization),
        head_kind=kind,
        head_block=n_block_rows,
        n_target_layers=n_target_layers,
    )
