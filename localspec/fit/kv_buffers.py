"""Bytes of KV caches and recurrent states on each device."""

from __future__ import annotations

from dataclasses import replace

from localspec.fit.context_params import ContextParams
from localspec.fit.hparams import LayerHparams, ModelHparams
from localspec.fit.layer_placement import LayerPlacement
from localspec.fit.model_buffers import padding_bytes
from localspec.models.gguf.tensors import GGML_TYPES

_F16 = 1


def estimate(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> tuple[int, ...]:
    """Bytes by backend."""
    sums = [0] * len(placement.backend_names)
    sizes: dict[tuple[LayerHparams, int], int] = {}
    for il, layer in enumerate(hparams.layers):
        if (il >= hparams.n_layer) != (params.head_kind == "mtp"):
            continue  # the cache of an MTP layer belongs to the draft
        backend = placement.layer_backends[il]
        size = sizes.get((layer, backend))
        if size is None:
            size = _layer_bytes(hparams, layer, params, placement, backend)
            sizes[layer, backend] = size
        sums[backend] += size
    return tuple(sums)


def _layer_bytes(
    hparams: ModelHparams,
    layer: LayerHparams,
    params: ContextParams,
    placement: LayerPlacement,
    backend: int,
) -> int:
    size = 0
    cells = _cells(layer, params)
    for kv_type, width in _rows(hparams, layer, params):
        n_bytes = row_bytes(kv_type, width) * cells
        size += _pad_and_align(n_bytes, kv_type, width, placement, backend)
    if layer.is_recurrent:
        for width in (hparams.n_embd_r, hparams.n_embd_s):
            size += _pad_and_align(4 * width * (1 + params.n_rs_seq), 0, width, placement, backend)
    return size


def layer_cache_bytes(hparams: ModelHparams, layer: LayerHparams, params: ContextParams) -> int:
    """K and V of one layer, without alignment; 0 for a layer without a cache."""
    return _cells(layer, params) * sum(row_bytes(*row) for row in _rows(hparams, layer, params))


def f16_copy_bytes(hparams: ModelHparams, params: ContextParams) -> int:
    """K and V of the largest layer in f16, if they are stored in a quantised type."""
    if all(GGML_TYPES[kv_type][1] == 1 for kv_type in params.kv_types):
        return 0
    in_f16 = replace(params, kv_types=(_F16, _F16))
    return max(layer_cache_bytes(hparams, layer, in_f16) for layer in set(hparams.layers))


def _cells(layer: LayerHparams, params: ContextParams) -> int:
    return params.n_ctx_swa if layer.is_swa else params.n_ctx


def _rows(
    hparams: ModelHparams, layer: LayerHparams, params: ContextParams
) -> list[tuple[int, int]]:
    """Type and width of K and V; a compressed cache has one row per token."""
    if not layer.has_kv:
        return []
    k_width = layer.n_head_kv * layer.n_embd_head_k
    widths = (k_width,) if hparams.is_mla else (k_width, value_width(hparams, layer, params))
    return list(zip(params.kv_types, widths, strict=False))


def value_width(hparams: ModelHparams, layer: LayerHparams, params: ContextParams) -> int:
    """Width of a V row; a transposed V cache gives all layers the width of the widest."""
    if params.v_token_major:
        return layer.n_head_kv * layer.n_embd_head_v
    return max(each.n_head_kv * each.n_embd_head_v for each in hparams.layers)


def row_bytes(ggml_type: int, width: int) -> int:
    _, block, block_bytes = GGML_TYPES[ggml_type]
    return width // block * block_bytes


def _pad_and_align(
    size: int, ggml_type: int, width: int, placement: LayerPlacement, backend: int
) -> int:
    rules = placement.backend_rules[backend]
    if rules.padding and size:
        size += padding_bytes(ggml_type, width, rules.padding)
    return -(-size // rules.alignment) * rules.alignment
