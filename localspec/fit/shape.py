"""The shape of a model: the numbers that its memory and its speed depend on."""

from __future__ import annotations

import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.errors import ModelFileError
from localspec.machine.llama_params import has_amx
from localspec.models import draft_heads
from localspec.models.gguf.architectures import (
    ASSISTANTS,
    Architecture,
    find_architecture,
)
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import TensorInfo

_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")
_EXPERT_TENSORS = re.compile(r"ffn_(up|down|gate_up|gate)_(ch|)exps")
_TABLES = (
    "token_embd.weight",
    "token_types.weight",
    "position_embd.weight",
    "per_layer_token_embd.weight",
)
"""llama.cpp keeps them on the CPU; a pass reads one row per token."""
_FIRST_LAYER_TENSORS = ("per_layer_model_proj.weight", "per_layer_proj_norm.weight")
_ENCODER_TENSORS = ("v.", "mm.", "a.")
"""Those of images and sounds are on the CPU too, and are not read for text."""
_ON_CPU = (*_TABLES, *_ENCODER_TENSORS)
_X86_TYPES = ("Q4_0", "Q4_K", "IQ4_NL", "MXFP4")
_REPACKED_TYPES = {
    **dict.fromkeys(("x86_64", "amd64"), _X86_TYPES),
    **dict.fromkeys(("arm64", "aarch64"), (*_X86_TYPES, "Q5_K", "Q6_K", "Q8_0")),
}
"""Types that ggml repacks for the CPU's instructions, in a separate buffer."""


class LayerShape(Struct, frozen=True):
    """One layer: bytes of weights, and numbers per token."""

    weights: int  # Without experts.
    experts: int = 0
    matrix: int = 0  # Bytes of the largest matrix that is no expert's.
    expert_matrix: int = 0  # Bytes of the largest matrix of all experts.
    n_head: int = 0  # 0: the layer has no attention.
    n_head_kv: int = 0
    n_embd_head_k: int = 0
    n_embd_head_v: int = 0
    qkv: int = 0  # Queries, keys and values while they are computed.
    ff: int = 0  # The feed-forward part, or the experts in use, while it is computed.
    is_swa: bool = False  # Sliding-window attention.
    is_recurrent: bool = False
    has_kv: bool = False  # Has a KV cache of its own.

    @property
    def k_width(self) -> int:
        return self.n_head_kv * self.n_embd_head_k

    @property
    def v_width(self) -> int:
        return self.n_head_kv * self.n_embd_head_v

    @property
    def queries_per_kv(self) -> float:
        return max(1.0, self.n_head / max(1, self.n_head_kv))


class ModelShape(Struct, frozen=True, dict=True):
    """Bytes of weights, and numbers per token or sequence."""

    architecture: str
    layers: tuple[LayerShape, ...]  # With the MTP layers, which come last.
    n_embd: int
    n_vocab: int = 0
    n_ctx_train: int = 0
    n_mtp: int = 0  # MTP layers, which llama.cpp loads only if they draft.
    input_bytes: int = 0  # Of tables, which stay on the CPU.
    output_bytes: int = 0  # Of what is on the device of the output layer.
    # Bytes of the matrix that makes logits; 0: a head borrows its target's.
    output_matrix: int = 0
    output_reads: int = 0  # Bytes that each pass reads outside the layers.
    # The token embeddings are the output matrix: a GPU gets a copy.
    is_tied: bool = False
    is_table_repacked: bool = False
    """On this CPU tied embeddings are repacked, beside the original."""
    n_swa: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    mla_result: int = 0
    """Floats of attention's results with compressed keys and values (MLA).

    They are both the compressed ones and the full ones.
    """
    n_shared_kv: int = 0  # Last layers, which read the KV cache of earlier ones.
    n_embd_per_layer: int = 0  # Width of embeddings for each layer (Gemma E).
    n_embd_r: int = 0  # Floats of a convolution state, per layer and sequence.
    n_embd_s: int = 0  # Floats of a recurrent state, per layer and sequence.
    ssm_inner: int = 0
    # Inputs of a recurrent layer's convolution; 0: a short convolution.
    ssm_channels: int = 0
    weight_type: str = ""  # The type of most bytes that a pass reads, such as Q4_K.
    head_kind: str = ""  # eagle3, mtp, dflash or dspark; empty for a model.
    head_block: int = 0  # Rows of a block head.
    n_target_layers: int = 0  # Layers of the target whose inputs a head reads.
    has_reduced_vocab: bool = False
    has_mtp_output: bool = False  # The MTP layer has an output matrix of its own.

    @property
    def traits(self) -> Architecture:
        """What all models of this architecture have in common."""
        return find_architecture(self.architecture)

    @cached_property
    def layer_kinds(self) -> tuple[int, ...]:
        """By layer, a number that equal layers share: most are alike."""
        kinds: dict[LayerShape, int] = {}
        return tuple(kinds.setdefault(layer, len(kinds)) for layer in self.layers)

    @property
    def n_layer(self) -> int:
        """Without MTP layers."""
        return len(self.layers) - self.n_mtp

    @property
    def is_moe(self) -> bool:
        return self.n_expert > 1

    @cached_property
    def expert_matrix_bytes(self) -> float:
        """Bytes of the largest matrix of one expert; 0 without experts."""
        if self.n_expert <= 1:
            return 0.0
        widest = max((layer.expert_matrix for layer in self.layers), default=0)
        return widest / self.n_expert

    @property
    def is_mla(self) -> bool:
        """The KV cache holds one compressed row per token."""
        return self.mla_result > 0

    @property
    def has_recurrent_state(self) -> bool:
        return self.traits.memory != "attention"

    @property
    def can_rollback(self) -> bool:
        return self.traits.rolls_back

    @property
    def has_target_weights(self) -> bool:
        """Whether the target is in the same file, as with built-in MTP layers.

        A file of MTP layers alone has none, nor has an assistant.
        """
        if self.head_kind != "mtp" or self.n_layer == 0:
            return False
        return self.layers[0].matrix > 0

    @property
    def own_layers(self) -> range:
        """Numbers of the layers that this model runs.

        The MTP layers are a draft of their own.
        """
        if self.head_kind == "mtp":
            return range(self.n_layer, len(self.layers))
        return range(self.n_layer)

    def kv_source(self, il: int) -> int:
        """The layer whose KV cache layer `il` reads."""
        first_shared = len(self.layers) - self.n_shared_kv
        if il < first_shared:
            return il
        # The last two layers with a cache: one with a sliding window, then a full one.
        if self.layers[il].is_swa:
            return first_shared - 2
        return first_shared - 1


@contextmanager
def refuse_inconsistent() -> Iterator[None]:
    """Raises ModelFileError for what inconsistent numbers of a header raise."""
    try:
        yield
    except (ArithmeticError, LookupError, ValueError) as error:
        what = "The sizes in the model file are inconsistent."
        raise ModelFileError(what, "Download it again, or try another file.") from error


def for_target(shape: ModelShape, target: Header, draft: Header) -> ModelShape:
    """The shape of a draft, as the head that it is for this target."""
    kind = draft_heads.draft_kind_for_target(target, draft)
    if kind == "model":
        return shape
    block = 0
    if draft_kinds.kinds()[kind].drafts_blocks:
        block = draft_heads.read_block_format(draft).size
    n_layers = len(set(draft_heads.target_layers(draft)))
    return replace(shape, head_kind=kind, head_block=block, n_target_layers=n_layers)


def from_header(header: Header) -> ModelShape:
    """Reads the shape of a model.

    Raises ArithmeticError, LookupError or ValueError if the numbers are inconsistent.
    """
    number = header.hparam
    blocks: defaultdict[int, dict[str, TensorInfo]] = defaultdict(dict)
    rest: dict[str, TensorInfo] = {}
    for tensor in header.tensors:
        if match := _BLOCK_TENSOR.match(tensor.name):
            blocks[int(match[1])][match[2]] = tensor
        else:
            rest[tensor.name] = tensor
    first_bytes = sum(
        rest.pop(name).n_bytes for name in _FIRST_LAYER_TENSORS if name in rest
    )
    layers = [_read_layer(header, blocks[il], il) for il in range(header.n_layer)]
    layers[0] = replace(layers[0], weights=layers[0].weights + first_bytes)
    n_expert = number("expert_count")
    inner = number("ssm.inner_size")
    channels = inner + 2 * number("ssm.group_count") * number("ssm.state_size")
    short_conv = number("shortconv.l_cache")
    if short_conv:
        convolution = header.n_embd * (short_conv - 1)
    else:
        convolution = max(0, number("ssm.conv_kernel") - 1) * channels
    mla_result = 0
    if number("attention.key_length_mla") > 0:
        mla_result = number("attention.kv_lora_rank")
        mla_result += number("attention.value_length_mla")
    return ModelShape(
        architecture=header.architecture,
        layers=tuple(layers),
        n_embd=header.n_embd,
        n_ctx_train=header.n_ctx_train,
        n_mtp=number("nextn_predict_layers"),
        n_swa=_n_swa(header),
        n_expert=n_expert,
        n_expert_used=min(number("expert_used_count", n_expert), n_expert),
        mla_result=header.n_head * mla_result,
        n_shared_kv=_n_shared_kv(header),
        n_embd_per_layer=number("embedding_length_per_layer_input"),
        n_embd_r=convolution,
        n_embd_s=number("ssm.state_size") * inner,
        ssm_inner=inner,
        ssm_channels=channels,
        has_reduced_vocab="d2t" in rest,
        has_mtp_output="nextn.shared_head_head.weight" in blocks[header.n_layer - 1],
        **_read_tables(header, rest),
    )


def _read_tables(header: Header, tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """`tensors`: those outside the layers."""
    # The matrix that makes logits: one of its own, else the token embeddings.
    table = tensors.get("token_embd.weight")
    matrix = tensors.get("output.weight")
    is_tied = False
    traits = find_architecture(header.architecture)
    if matrix is None and table is not None and not traits.borrows_output_matrix:
        matrix = table
        is_tied = True
    matrix_bytes = 0
    if matrix is not None:
        matrix_bytes = matrix.n_bytes
    widest = matrix or table
    n_vocab = header.hparam("vocab_size")
    if widest is not None:
        n_vocab = widest.shape[1]

    # A pass reads one row of a table, and all of any other tensor.
    reads = 0
    if is_tied:
        reads = matrix_bytes
    for name, tensor in tensors.items():
        if name in (*_TABLES, "markov_w1.weight") and len(tensor.shape) > 1:
            reads += tensor.n_bytes // max(1, tensor.shape[1])
        elif not name.startswith(_ON_CPU):
            reads += tensor.n_bytes

    on_cpu = [tensor for name, tensor in tensors.items() if name.startswith(_ON_CPU)]
    input_bytes = sum(tensor.n_bytes for tensor in on_cpu)
    all_bytes = sum(tensor.n_bytes for tensor in tensors.values())
    is_table_repacked = False
    if table is not None:
        is_table_repacked = is_repacked(table.type_name, table.shape[1])
    return {
        "n_vocab": n_vocab,
        "input_bytes": input_bytes,
        "output_bytes": all_bytes - input_bytes,
        "output_matrix": matrix_bytes,
        "output_reads": reads,
        "is_tied": is_tied,
        "is_table_repacked": is_table_repacked,
        "weight_type": _most_read_type(header, is_tied=is_tied),
    }


def _read_layer(
    header: Header, tensors: Mapping[str, TensorInfo], il: int
) -> LayerShape:
    architecture = header.architecture
    memory = find_architecture(architecture).memory
    is_swa = _is_swa(header, il)
    is_recurrent = _is_recurrent(architecture, tensors)
    n_head = _layer_number(header, "attention.head_count", il)
    n_head_kv = _layer_number(header, "attention.head_count_kv", il, header.n_head)
    is_fused = "attn_qkv.weight" in tensors and not is_recurrent
    if memory == "recurrent":
        has_kv = False
    elif memory == "hybrid" or architecture in ASSISTANTS:
        names = {"attn_k.weight", "attn_kv_a_mqa.weight"}
        has_kv = is_fused or not names.isdisjoint(tensors)
    else:
        has_kv = il < header.n_layer - _n_shared_kv(header) and n_head_kv > 0
    key_width = _head_width(header, "key", is_swa=is_swa)
    value_width = _head_width(header, "value", is_swa=is_swa)
    compressed_query = header.hparam("attention.key_length_mla")
    if compressed_query:
        compressed_query += header.hparam("attention.kv_lora_rank")
    experts = []
    dense = []
    for name, tensor in tensors.items():
        if _EXPERT_TENSORS.match(name):
            experts.append(tensor.n_bytes)
        else:
            dense.append(tensor.n_bytes)
    n_query_heads = 0
    if "attn_output.weight" in tensors and not is_recurrent:
        n_query_heads = n_head
    return LayerShape(
        weights=sum(dense),
        experts=sum(experts),
        matrix=max(dense, default=0),
        expert_matrix=max(experts, default=0),
        n_head=n_query_heads,
        n_head_kv=n_head_kv,
        n_embd_head_k=key_width,
        n_embd_head_v=value_width,
        qkv=attention_width(
            architecture,
            AttentionHeads(
                n_head=n_head,
                n_head_kv=n_head_kv,
                key_width=key_width,
                value_width=value_width,
            ),
            mla=compressed_query,
            is_fused=is_fused,
        ),
        ff=_feed_forward(header, tensors, il),
        is_swa=is_swa,
        is_recurrent=is_recurrent,
        has_kv=has_kv,
    )


def _is_recurrent(architecture: str, tensors: Mapping[str, TensorInfo]) -> bool:
    """A hybrid's layer is known by its tensors."""
    memory = find_architecture(architecture).memory
    if memory != "hybrid":
        return memory == "recurrent"
    return any(name.startswith(("ssm_", "shortconv.")) for name in tensors)


def _head_width(header: Header, part: str, *, is_swa: bool) -> int:
    """Of a key or a value; those of sliding-window layers may have their own."""
    default = header.n_embd // max(1, header.n_head)
    width = header.hparam(f"attention.{part}_length", default)
    if is_swa:
        width = header.hparam(f"attention.{part}_length_swa", width)
    return width


class AttentionHeads(Struct, frozen=True):
    """The heads of one layer: their numbers, and the floats of a key and of a value."""

    n_head: int
    n_head_kv: int
    key_width: int
    value_width: int


def attention_width(
    architecture: str,
    heads: AttentionHeads,
    *,
    mla: int = 0,
    is_fused: bool = False,
) -> int:
    """Floats per token of queries, keys and values while they are computed.

    `mla`: widths of a head's query before and after compression, beside its compressed
    keys.  Example: 32 query heads and 8 KV heads of 128 take 32 × 128 + 8 × (128 + 128)
    = 6,144 floats, twice that if one matrix makes them all.
    """
    if mla:
        return heads.n_head * (mla + heads.key_width) + 2 * heads.key_width
    query_width = heads.n_head * heads.key_width
    width = query_width + heads.n_head_kv * (heads.key_width + heads.value_width)
    if is_fused:  # The product is copied in parts.
        width *= 2
    if find_architecture(architecture).has_gated_attention:
        width += 2 * query_width
    return width


def feed_forward_width(
    n_embd: int,
    dense: int,
    *,
    n_used: int = 0,
    expert_ff: int = 0,
    n_expert: int = 0,
) -> int:
    """Floats per token of the feed-forward part.

    `dense`: of all matrices of the dense part, or of shared experts.
    """
    width = 0
    if dense:
        width = dense + n_embd
    if n_expert:
        experts = n_used * (3 * expert_ff + n_embd) + 2 * n_expert
        width = max(width, experts) + n_embd
        if dense:  # The results of shared experts, or of a dense part beside, stay.
            width += n_embd
    return width


def _feed_forward(header: Header, tensors: Mapping[str, TensorInfo], il: int) -> int:
    names = {"ffn_up.weight", "ffn_up_shexp.weight"} & tensors.keys()
    n_matrices = 2
    if any(name.startswith("ffn_gate") for name in tensors):
        n_matrices = 3
    dense = n_matrices * max((tensors[name].shape[1] for name in names), default=0)
    down = tensors.get("ffn_down_exps.weight")
    if down is None:
        return feed_forward_width(header.n_embd, dense)
    return feed_forward_width(
        header.n_embd,
        dense,
        n_used=_layer_number(header, "expert_used_count", il),
        expert_ff=down.shape[0],
        n_expert=header.hparam("expert_count"),
    )


def _layer_number(header: Header, key: str, il: int, default: int = 0) -> int:
    """A key with one value, or one for each layer."""
    value = header.keys.get(f"{header.architecture}.{key}", default)
    if isinstance(value, tuple):
        value = value[il] if il < len(value) else default
    return int(value) if isinstance(value, int | float) else default


def _n_shared_kv(header: Header) -> int:
    n_own = find_architecture(header.architecture).n_layers_with_own_kv
    if n_own:
        return max(0, header.n_layer - n_own)
    return header.hparam("attention.shared_kv_layers")


def _n_swa(header: Header) -> int:
    window = find_architecture(header.architecture).window
    if window is None:
        return 0
    return header.hparam("attention.sliding_window", window.default_size)


def _is_swa(header: Header, il: int) -> bool:
    window = find_architecture(header.architecture).window
    if window is None or not _n_swa(header):
        return False
    if window.is_every_attention_layer:
        return _layer_number(header, "attention.head_count_kv", il) > 0
    pattern = header.keys.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return il < len(pattern) and bool(pattern[il])
    if il >= header.n_layer - header.hparam("nextn_predict_layers"):
        return False
    n = window.every
    if isinstance(pattern, int):
        n = pattern
    if n == 0:
        return True
    full_layer = n - 1
    if window.is_dense_first:
        full_layer = 0
    return il % n != full_layer


def _most_read_type(header: Header, *, is_tied: bool) -> str:
    n_expert = header.hparam("expert_count")
    n_used = min(header.hparam("expert_used_count", n_expert), n_expert)
    share_of_experts = n_used / max(1, n_expert)
    types: Counter[str] = Counter()
    for tensor in header.tensors:
        is_output = is_tied and tensor.name == "token_embd.weight"
        if tensor.name in _TABLES and not is_output:
            continue
        n_bytes = tensor.n_bytes
        if "_exps" in tensor.name:
            n_bytes = int(n_bytes * share_of_experts)
        types[tensor.type_name] += n_bytes
    if not types:
        return ""
    return types.most_common(1)[0][0]


def is_repacked(type_name: str, n_rows: int) -> bool:
    """Whether ggml repacks a matrix on this CPU (ggml_repack_get_optimal_repack_type).

    A repacked matrix stays on the CPU: GPUs cannot use it, nor can it serve as token
    embeddings.
    """
    if has_amx():  # llama_params turns extra buffer types off
        return False
    types = _REPACKED_TYPES.get(platform.machine().lower(), ())
    return type_name in types and n_rows % 8 == 0
