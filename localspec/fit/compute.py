"""Upper bound of the compute buffers on each device: the activations of one full batch.

llama.cpp reserves one buffer per device for the worst graph and reuses memory inside it, so its
size is the largest set of tensors that exist at the same time.  This module adds up those of the
largest layer, the inputs that stay for the whole pass, and what the scheduler copies between
devices.  scripts/measure_estimate.py compares the sum with llama.cpp's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from localspec.fit.context import ContextParams
from localspec.fit.placement import LayerPlacement
from localspec.fit.shape import GATED_ATTENTION, LayerShape, ModelShape
from localspec.lazy_dataclass import dataclass
from localspec.models.gguf.tensors import GGML_TYPES

_F32, _F16 = 0, 1
_ALIGNMENT_SLACK = 1 << 20
"""Bytes per device: alignment, norms of a few rows, indices."""
_OFFLOAD_MIN_BATCH = 32
"""From this batch size on, the first GPU computes with weights in system memory (`op_offload`)."""


def estimate(shape: ModelShape, params: ContextParams, placement: LayerPlacement) -> list[int]:
    """Bytes by backend; 0 for a GPU without layers."""
    backends = range(placement.cpu_backend + 1)
    variants = [params]
    if params.flash_attn_auto and params.flash_attn and _may_turn_flash_off(shape, placement):
        variants.append(replace(params, flash_attn=False))
    return [
        max(_DeviceBuffers(shape, each, placement, backend).estimate() for each in variants)
        for backend in backends
    ]


def _may_turn_flash_off(shape: ModelShape, placement: LayerPlacement) -> bool:
    """llama.cpp turns flash attention off where it would not run on its layer's device.

    Of the families in tests/families.py only lfm2 and granitehybrid do, if the layers on the CPU
    begin or end with an attention layer.
    """
    if not shape.has_recurrent_state or shape.architecture in GATED_ATTENTION:
        return False
    homes, cpu = placement.layer_backends, placement.cpu_backend
    return any(
        homes[il] != homes[il + 1]
        and cpu in homes[il : il + 2]
        and not all(layer.is_recurrent for layer in layers)
        for il, layers in enumerate(pairwise(shape.layers[: shape.n_layer]))
    )


def layer_cache_bytes(shape: ModelShape, layer: LayerShape, params: ContextParams) -> int:
    """K and V of one layer; 0 for a layer without a cache."""
    if not layer.has_kv:
        return 0
    cells = params.n_ctx_swa if layer.is_swa else params.n_ctx
    k, v = layer.n_head_kv * layer.n_embd_head_k, layer.n_head_kv * layer.n_embd_head_v
    if not params.v_token_major:  # transposed: all layers get the width of the widest
        v = max(each.n_head_kv * each.n_embd_head_v for each in shape.layers)
    rows = zip(params.kv_types, (k, 0 if shape.is_mla else v), strict=True)
    return cells * sum(row_bytes(*row) for row in rows)


def row_bytes(ggml_type: int, width: int) -> int:
    _, block, block_bytes = GGML_TYPES[ggml_type]
    return width // block * block_bytes


@dataclass(frozen=True, slots=True)
class _DeviceBuffers:
    shape: ModelShape
    params: ContextParams
    placement: LayerPlacement
    backend: int

    @property
    def is_cpu(self) -> bool:
        return self.backend == self.placement.cpu_backend

    @property
    def has_gpu(self) -> bool:
        return self.placement.cpu_backend > 0

    @property
    def _is_partial(self) -> bool:
        """Some layers, or the output, are on the CPU although there is a GPU."""
        return self.has_gpu and not self.placement.fully_offloaded

    @property
    def column(self) -> int:
        """Bytes of one number per token, for a full batch."""
        return 4 * self.params.n_ubatch

    @property
    def row(self) -> int:
        """Bytes of one hidden state per token."""
        return self.column * self.shape.n_embd

    def estimate(self) -> int:
        stages = [*self._layer_stages(), self._output_bytes()]
        if not any(stages) and not self.is_cpu:
            return 0
        # The token embeddings, or the rows that could be given instead of tokens.
        size = self.placement.n_copies * (self._mask_bytes() + self.row) + _ALIGNMENT_SLACK
        size += max(stages) + self._per_layer_input_bytes()
        if self.placement.output_backend == self.backend or self.params.n_hidden_states:
            size += self.params.n_hidden_states * self.row  # for a head: never overwritten
        return size + self.row * (self.is_cpu and self.has_gpu)

    def _layer_stages(self) -> Iterator[int]:
        """Bytes of each layer that may compute on this device."""
        crossing = self._crossing_bytes()
        for il in self.shape.own_layers:
            if size := self._stage_bytes(il):
                yield size + crossing

    def _stage_bytes(self, il: int) -> int:
        placement, layer = self.placement, self.shape.layers[il]
        home = placement.layer_backends[il]
        is_on_cpu, experts_moved = home == placement.cpu_backend, placement.experts_on_cpu
        if not self.has_gpu:
            return self._layer_bytes(layer)
        if self.is_cpu:
            # The first GPU cannot read repacked weights; many operations of recurrent layers
            # have no weights, and stay.
            stays = placement.repacks or self.shape.has_recurrent_state
            if is_on_cpu and stays:
                return self._layer_bytes(layer)
            return self.column * layer.ff * (experts_moved and placement.repacks)
        if self.backend == 0 and is_on_cpu:
            copied = max(2 * layer.expert_matrix, layer.matrix)
            source = self.shape.layers[self.shape.kv_source(il)]
            copied += layer_cache_bytes(self.shape, source, self.params)
            return self._layer_bytes(layer) + copied
        if self.backend == 0 and experts_moved:  # it computes those of all GPUs
            return self._layer_bytes(layer) + 2 * layer.expert_matrix
        if experts_moved and layer.experts:
            layer = replace(layer, ff=0)
        return self._layer_bytes(layer) * (home == self.backend)

    def _layer_bytes(self, layer: LayerShape) -> int:
        if layer.is_recurrent:
            mixer = self._recurrent_bytes()
        else:
            mixer = self._attention_bytes(layer) if layer.n_head else 0
        has_products = not self.is_cpu or not self._is_partial or self.placement.repacks
        # The residual and the normed input stay until the layer has used them.
        return 2 * self.row + max(mixer, self.column * layer.ff * has_products)

    def _attention_bytes(self, layer: LayerShape) -> int:
        shape, params = self.shape, self.params
        query = layer.n_head * layer.n_embd_head_k
        result = shape.mla_result or layer.n_head * layer.n_embd_head_v
        k_width = layer.n_head_kv * layer.n_embd_head_k
        v_width = k_width if shape.is_mla else layer.n_head_kv * layer.n_embd_head_v
        size = self.column * layer.qkv
        if not shape.is_mla:  # rotated, so that a quantised cache loses less
            keys, values = (GGML_TYPES[kv_type][1] > 1 for kv_type in params.kv_types)
            size += self.column * (query * keys + result * values)
        cells = params.n_ctx_swa if layer.is_swa else params.n_ctx
        if params.flash_attn:
            copies = self.placement.backend_rules[self.backend].f16_copies
            for kv_type, width in zip(params.kv_types, (k_width, v_width), strict=True):
                # CUDA keeps f16 copies of a cache in another type behind the result.
                if kv_type == _F32 or (kv_type != _F16 and copies):
                    size += 2 * width * cells
            return size + self.column * result
        # The scores, and the result twice: the second time permuted.
        size += self.column * (2 * result + layer.n_head * cells)
        if params.v_token_major or shape.is_mla:  # V has to be transposed
            size += (4 if params.kv_types[1] == _F32 else 2) * v_width * cells
        return size

    def _recurrent_bytes(self) -> int:
        shape, params = self.shape, self.params
        if not shape.ssm_inner:
            return 7 * self.row  # a short convolution
        channels, inner = shape.ssm_channels, shape.ssm_inner
        # The state is fetched, and each snapshot for rollback is part of the result.
        snapshots = 4 * (params.n_rs_seq + 1) * (shape.n_embd_s + shape.n_embd_r)
        if self.is_cpu and self._is_partial:
            # The GPU computes.  Each snapshot of the convolution is a view of all its input, and
            # the scheduler copies a view with everything between its first and its last byte.
            return self.column * ((params.n_rs_seq + 2) * channels + inner) + snapshots
        return self.column * 3 * (channels + inner) + snapshots

    def _crossing_bytes(self) -> int:
        """What a batch brings along from another device, once for each copy of the pipeline."""
        shape, placement, homes = self.shape, self.placement, self.placement.layer_backends
        if placement.cpu_backend < 2 and not self._is_partial:
            return 0
        size = self.row
        if shape.architecture not in GATED_ATTENTION:
            size += 2 * self.column * shape.ssm_inner
        if shape.n_shared_kv:
            here = [il for il in self.shape.own_layers if homes[il] == self.backend]
            sources = {shape.kv_source(il) for il in here}
            size += sum(
                layer_cache_bytes(shape, shape.layers[il], self.params)
                for il in sources
                if homes[il] != self.backend
            )
        return size * placement.n_copies

    def _mask_bytes(self) -> int:
        """One mask for all layers of a kind; a transposed V cache also has an index per element."""
        params, homes = self.params, self.placement.layer_backends
        # The first GPU also computes layers on the CPU.
        here = {self.backend} | ({self.placement.cpu_backend} if self.backend == 0 else set())
        used = [
            layer
            for il in self.shape.own_layers
            if (self.is_cpu or homes[il] in here) and (layer := self.shape.layers[il]).n_head
        ]
        size = 0
        for is_swa in {layer.is_swa for layer in used}:
            cells = params.n_ctx_swa if is_swa else params.n_ctx
            size += cells * params.n_ubatch * (2 if params.flash_attn else 4)
            if not params.v_token_major:
                width = max(each.n_head_kv * each.n_embd_head_v for each in used)
                size += 8 * params.n_ubatch * width
        return size

    def _per_layer_input_bytes(self) -> int:
        """Gemma 3n and 4 E: an embedding for each layer, its projection and their sum."""
        size = self.column * self.shape.n_embd_per_layer * self.shape.n_layer
        if self.is_cpu and self.has_gpu:
            return 2 * size
        n_copies = self.placement.n_copies
        return size * (3 if n_copies == 1 else 2 + 2 * n_copies)

    def _output_bytes(self) -> int:
        """Logits, and the rows they are computed from; a head computes all rows."""
        shape, params, placement = self.shape, self.params, self.placement
        rows = params.n_ubatch if shape.head_kind else params.n_outputs_max
        home, matrix_bytes = placement.output_backend, shape.output_matrix
        if not matrix_bytes and params.target_output_matrix[0] in placement.backend_names:
            name, matrix_bytes = params.target_output_matrix
            home = placement.backend_names.index(name)
        copied = 0
        if (
            self.has_gpu
            and self.backend == 0
            and home == placement.cpu_backend
            and rows >= _OFFLOAD_MIN_BATCH
        ):
            copied = matrix_bytes
        elif self.backend not in (home, placement.output_backend):
            return 0
        # Logits of a reduced vocabulary are spread over the whole one.
        logits = 1 + 2 * shape.has_reduced_vocab + (copied > 0)
        n_vocab = params.n_vocab or shape.n_vocab
        return copied + 4 * rows * (logits * n_vocab + 2 * shape.n_embd)
