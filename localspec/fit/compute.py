"""Upper bound of the compute buffers on each device: the activations of one full batch.

llama.cpp reserves one buffer per device for the worst graph and reuses memory inside it, so its
size is the largest set of tensors that exist at the same time.  This module adds up those of the
largest layer, the inputs that stay for the whole pass, and what the scheduler copies between
devices.  tests/fit/test_memory.py compares the sum with llama.cpp's own.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from localspec.fit.placement import ContextParams, LayerPlacement
from localspec.fit.shape import GATED_ATTENTION, LayerShape, ModelShape
from localspec.models.gguf.parser import GGML_TYPES

_F32, _F16 = 0, 1
_ALIGNMENT_SLACK = 1 << 20  # Bytes per device: alignment, norms of a few rows, indices.
_OFFLOAD_MIN_BATCH = 32
"""From this batch size on, the first GPU computes with weights in system memory
(`op_offload`).
"""


def estimate(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement
) -> list[int]:
    """Bytes by backend; 0 for a GPU without layers."""
    variants = [params]
    # llama.cpp turns flash attention off where it would not run on its layer's device:
    # of the families in tests/support/families.py only for some with short convolutions
    # or Mamba layers.
    is_hybrid = shape.has_recurrent_state and shape.architecture not in GATED_ATTENTION
    if params.flash_attn_auto and params.flash_attn and is_hybrid and placed.is_partial:
        variants.append(replace(params, flash_attn=False))
    return [
        max(
            _DeviceBuffers(shape, each, placed, backend).estimate() for each in variants
        )
        for backend in range(len(placed.backend_names))
    ]


def layer_cache_bytes(
    shape: ModelShape, layer: LayerShape, params: ContextParams
) -> int:
    """K and V of one layer; 0 for a layer without a cache."""
    if not layer.has_kv:
        return 0
    v_width = layer.v_width
    if not params.v_token_major:  # transposed: all layers get the width of the widest
        v_width = max(each.v_width for each in shape.layers)
    widths = (layer.k_width, 0 if shape.is_mla else v_width)
    types = (GGML_TYPES[kv_type] for kv_type in params.kv_types)
    sizes = zip(widths, types, strict=True)
    return params.cells(layer) * sum(
        width // block * size for width, (_, block, size) in sizes
    )


class _DeviceBuffers(Struct, frozen=True):
    shape: ModelShape
    params: ContextParams
    placed: LayerPlacement
    backend: int

    @property
    def is_cpu(self) -> bool:
        return self.backend == self.placed.cpu_backend

    @property
    def column(self) -> int:
        """Bytes of one number per token, for a full batch."""
        return 4 * self.params.n_ubatch

    @property
    def row(self) -> int:
        """Bytes of one hidden state per token."""
        return self.column * self.shape.n_embd

    def estimate(self) -> int:
        placed, n_states = self.placed, self.params.n_hidden_states
        homes, experts = placed.layer_backends, placed.expert_backends
        shape, kinds = self.shape, self.shape.layer_kinds
        distinct = {
            (kinds[il], kinds[shape.kv_source(il)], homes[il], experts[il]): il
            for il in shape.own_layers
        }
        stages = [size for il in distinct.values() if (size := self._stage_bytes(il))]
        largest = max(stages) + self._crossing_bytes() if stages else 0
        largest = max(largest, self._output_bytes())
        if not largest and not self.is_cpu:
            return 0
        # The token embeddings, or the rows that could be given instead of tokens.
        size = (
            placed.n_copies * (self._mask_bytes() + self.row)
            + _ALIGNMENT_SLACK
            + largest
        )
        # Gemma 3n and 4 E: an embedding for each layer, its projection and their sum.
        per_layer = self.column * self.shape.n_embd_per_layer * self.shape.n_layer
        size += (
            self.row * (self.is_cpu and placed.has_gpu)
            + (1 + 2 * placed.n_copies) * per_layer
        )
        return size + n_states * self.row  # for a head: never overwritten

    def _stage_bytes(self, il: int) -> int:
        """Bytes of a layer, if it may compute on this device."""
        placed, layer = self.placed, self.shape.layers[il]
        is_on_cpu = placed.layer_backends[il] == placed.cpu_backend
        experts = 2 * layer.expert_matrix
        if not placed.has_gpu:
            is_here, copied = True, 0
        elif self.is_cpu:
            # The first GPU cannot read repacked weights; many operations of recurrent
            # layers have no weights, and stay.
            stays = placed.repacks or self.shape.has_recurrent_state
            is_here, copied = is_on_cpu and stays, 0
        elif self.backend == 0 and is_on_cpu:
            source = self.shape.layers[self.shape.kv_source(il)]
            copied = max(experts, layer.matrix) + layer_cache_bytes(
                self.shape, source, self.params
            )
            is_here = True
        elif (
            self.backend == 0
            and experts
            and placed.expert_backends[il] == placed.cpu_backend
        ):
            # It computes those of all GPUs.
            is_here, copied = True, experts
        else:
            is_here, copied = placed.layer_backends[il] == self.backend, 0
        return is_here * (self._layer_bytes(layer) + copied)

    def _layer_bytes(self, layer: LayerShape) -> int:
        if layer.is_recurrent:
            mixer = self._recurrent_bytes()
        else:
            mixer = self._attention_bytes(layer) if layer.n_head else 0
        # The residual and the normed input stay until the layer has used them.
        return 2 * self.row + max(mixer, self.column * layer.ff)

    def _attention_bytes(self, layer: LayerShape) -> int:
        shape, params = self.shape, self.params
        result = shape.mla_result or layer.n_head * layer.n_embd_head_v
        size = self.column * layer.qkv
        v_width = layer.k_width if shape.is_mla else layer.v_width
        size += self.column * (layer.n_head * layer.n_embd_head_k + result)
        cells = params.cells(layer)
        if params.flash_attn:
            copies = self.placed.f16_copies[self.backend]
            for kv_type, width in zip(
                params.kv_types, (layer.k_width, v_width), strict=True
            ):
                # CUDA keeps f16 copies of a cache in another type behind the result.
                if kv_type == _F32 or (kv_type != _F16 and copies):
                    size += 2 * width * cells
            return size + self.column * result
        # The scores, and the result twice: the second time permuted.
        return size + self.column * (2 * result + layer.n_head * cells)

    def _recurrent_bytes(self) -> int:
        shape, n_rs_seq = self.shape, self.params.n_rs_seq
        if not shape.ssm_inner:
            return 7 * self.row  # a short convolution
        channels, inner = shape.ssm_channels, shape.ssm_inner
        # Each snapshot for rollback is part of the result.
        snapshots = 4 * (n_rs_seq + 1) * (shape.n_embd_s + shape.n_embd_r)
        if self.is_cpu and self.placed.is_partial:
            # The GPU computes.  Each snapshot of the convolution is a view of all its input, and
            # the scheduler copies a view with everything between its first and its last byte.
            return self.column * ((n_rs_seq + 2) * channels + inner) + snapshots
        return self.column * 3 * (channels + inner) + snapshots

    def _crossing_bytes(self) -> int:
        """What a batch brings along from another device, once for each copy of the
        pipeline.
        """
        shape = self.shape
        if self.placed.cpu_backend < 2 and not self.placed.is_partial:
            return 0
        size = self.row
        if shape.architecture not in GATED_ATTENTION:
            size += 2 * self.column * shape.ssm_inner
        return size * self.placed.n_copies

    def _mask_bytes(self) -> int:
        """One mask for all layers of a kind."""
        params, homes, layers = (
            self.params,
            self.placed.layer_backends,
            self.shape.layers,
        )
        # The first GPU also computes layers on the CPU.
        here = {self.backend} | (
            {self.placed.cpu_backend} if self.backend == 0 else set()
        )
        used = [
            layers[il]
            for il in self.shape.own_layers
            if self.is_cpu or homes[il] in here
        ]
        size = 0
        for layer in {each.is_swa: each for each in used if each.n_head}.values():
            size += (
                params.cells(layer) * params.n_ubatch * (2 if params.flash_attn else 4)
            )
        return size

    def _output_bytes(self) -> int:
        """Logits, and the rows they are computed from; a head computes all rows."""
        shape, params, placed = self.shape, self.params, self.placed
        rows = params.n_ubatch if shape.head_kind else params.n_outputs_max
        home, matrix_bytes = placed.output_backend, shape.output_matrix
        if not matrix_bytes and params.target_output_matrix[0] in placed.backend_names:
            name, matrix_bytes = params.target_output_matrix
            home = placed.backend_names.index(name)
        copied = 0
        is_offloaded = home == placed.cpu_backend and rows >= _OFFLOAD_MIN_BATCH
        if placed.has_gpu and self.backend == 0 and is_offloaded:
            copied = matrix_bytes
        elif self.backend not in (home, placed.output_backend):
            return 0
        # Logits of a reduced vocabulary are spread over the whole one.
        logits = 1 + 2 * shape.has_reduced_vocab + (copied > 0)
        n_vocab = params.n_vocab or shape.n_vocab
        return copied + 4 * rows * (logits * n_vocab + 2 * shape.n_embd)
