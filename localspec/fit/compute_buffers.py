"""Upper bound of the compute buffers on each device: the activations of one full batch.

llama.cpp reserves one buffer per device for the worst graph and reuses memory inside it, so its
size is the largest set of tensors that exist at the same time.  This module adds up the tensors of
the largest layer, the inputs that stay for the whole pass, and what the scheduler copies between
devices.  scripts/measure_estimate.py compares the sum with llama.cpp's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from localspec.fit import kv_buffers
from localspec.fit.context_params import ContextParams
from localspec.fit.hparams import ModelHparams
from localspec.fit.layer_placement import LayerPlacement
from localspec.fit.model_buffers import EXPERT_TENSORS
from localspec.lazy_dataclass import dataclass
from localspec.models.gguf.tensors import GGML_TYPES, TensorInfo

_F32, _F16 = 0, 1
_ALIGNMENT_SLACK = 1 << 20
"""Bytes per device: alignment, norms of a few rows, indices."""
OFFLOAD_MIN_BATCH = 32
"""From this batch size on, the first GPU computes with weights in system memory (`op_offload`)."""
_GATED_ATTENTION = ("qwen35", "qwen35moe", "qwen3next")
"""Their queries come with a gate of the same width."""


@lru_cache(maxsize=1024)
def estimate(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> tuple[int, ...]:
    """Bytes by backend; 0 for a GPU without layers."""
    sizes = _estimate(hparams, params, placement)
    if params.flash_attn_auto and params.flash_attn and _may_turn_flash_off(hparams, placement):
        without = _estimate(hparams, replace(params, flash_attn=False), placement)
        sizes = [max(pair) for pair in zip(sizes, without, strict=True)]
    return tuple(sizes)


def _may_share_layers(hparams: ModelHparams, placement: LayerPlacement) -> bool:
    """Whether a layer on the CPU may compute on the CPU and on the first GPU.

    The first GPU cannot read repacked weights; many operations of recurrent layers have no weights
    and stay.
    """
    partial = placement.cpu_backend > 0 and not placement.fully_offloaded
    return partial and (placement.repacks or hparams.has_recurrent_state)


def _may_turn_flash_off(hparams: ModelHparams, placement: LayerPlacement) -> bool:
    """llama.cpp turns flash attention off where it would not run on its layer's device.

    Of the families in tests/families.py only lfm2 and granitehybrid do, if the layers on the CPU
    begin or end with an attention layer.
    """
    if not hparams.has_recurrent_state or hparams.arch in _GATED_ATTENTION:
        return False
    homes, cpu = placement.layer_backends, placement.cpu_backend
    for il, layers in enumerate(pairwise(hparams.layers[: hparams.n_layer])):
        at_edge = homes[il] != homes[il + 1] and cpu in homes[il : il + 2]
        if at_edge and not all(layer.is_recurrent for layer in layers):
            return True
    return False


def _estimate(hparams: ModelHparams, params: ContextParams, placement: LayerPlacement) -> list[int]:
    return [
        _DeviceBuffers(hparams, params, placement, backend).estimate()
        for backend in range(placement.cpu_backend + 1)
    ]


@dataclass(frozen=True, slots=True)
class _DeviceBuffers:
    hparams: ModelHparams
    params: ContextParams
    placement: LayerPlacement
    backend: int

    @property
    def is_cpu(self) -> bool:
        return self.backend == self.placement.cpu_backend

    @property
    def _is_partial(self) -> bool:
        """Some layers, or the output, are on the CPU although there is a GPU."""
        return self.placement.cpu_backend > 0 and not self.placement.fully_offloaded

    @property
    def layer_numbers(self) -> range:
        if self.params.head_kind == "mtp":
            return range(self.hparams.n_layer, self.hparams.n_layer_all)
        return range(self.hparams.n_layer)

    @property
    def row(self) -> int:
        """Bytes of one activation for a full batch."""
        return 4 * self.params.n_ubatch * self.hparams.n_embd

    def estimate(self) -> int:
        stages = [*self._layer_stages(), self._output_bytes()]
        if not any(stages) and not self.is_cpu:
            return 0
        copies = self.placement.n_copies
        # The token embeddings, or the rows that could be given instead of tokens.
        size = copies * (self._mask_bytes() + self.row) + _ALIGNMENT_SLACK
        size += max(stages) + self._per_layer_input_bytes() + self._given_hidden_state_bytes()
        if self.is_cpu and self.placement.cpu_backend:
            size += self.row
        return size

    def _layer_stages(self) -> Iterator[int]:
        """Bytes of each layer that may compute on this device."""
        for il in self.layer_numbers:
            home = self.placement.layer_backends[il]
            size = self._stage_bytes(il, home)
            if size:
                yield size + self._crossing_bytes()

    def _stage_bytes(self, il: int, home: int) -> int:
        placement = self.placement
        cpu, on_cpu, experts_moved = (
            placement.cpu_backend,
            home == placement.cpu_backend,
            placement.experts_on_cpu,
        )
        if not cpu:
            return self._layer_bytes(il)
        if self.is_cpu:
            if on_cpu and _may_share_layers(self.hparams, placement):
                return self._layer_bytes(il)
            return self._feed_forward_bytes(il) * (experts_moved and placement.repacks)
        if self.backend == 0 and on_cpu:
            return self._layer_bytes(il) + self._copied_bytes(il, layer_on_cpu=True)
        if self.backend == 0 and experts_moved:  # it computes those of all GPUs
            return self._layer_bytes(il) + self._copied_bytes(il, layer_on_cpu=False)
        return self._layer_bytes(il) * (home == self.backend)

    def _layer_bytes(self, il: int) -> int:
        tensors = self.hparams.layer_tensors.get(il, {})
        mixer = 0
        if self.hparams.layers[il].is_recurrent:
            mixer = self._recurrent_bytes(tensors)
        elif "attn_output.weight" in tensors:
            mixer = self._attention_bytes(il, tensors)
        has_products = not self.is_cpu or not self._is_partial or self.placement.repacks
        feed_forward = self._feed_forward_bytes(il) if has_products else 0
        # The residual and the normed input stay until the layer has used them.
        return 2 * self.row + max(mixer, feed_forward)

    def _attention_bytes(self, il: int, tensors: dict[str, TensorInfo]) -> int:
        hparams, params, layer = self.hparams, self.params, self.hparams.layers[il]
        column = 4 * params.n_ubatch
        q = column * layer.n_head * layer.n_embd_head_k
        result = column * layer.n_head * layer.n_embd_head_v
        k_width = layer.n_head_kv * layer.n_embd_head_k
        v_width = layer.n_head_kv * layer.n_embd_head_v
        if hparams.is_mla:  # queries before and after absorption, compressed and full results
            v_width = k_width = layer.n_embd_head_k
            head = hparams.number("attention.key_length_mla")
            rank = hparams.number("attention.kv_lora_rank")
            value = hparams.number("attention.value_length_mla")
            q = column * layer.n_head * (head + rank + layer.n_embd_head_k)
            result = column * layer.n_head * (rank + value)
        size = q + column * (k_width + v_width)
        if "attn_qkv.weight" in tensors:
            size *= 2  # q, k and v are contiguous copies of parts of one product
        if hparams.arch in _GATED_ATTENTION:
            size += 2 * q
        if not hparams.is_mla:  # rotated, so that a quantised cache loses less
            keys, values = (GGML_TYPES[kv_type][1] > 1 for kv_type in params.kv_types)
            size += q * keys + result * values
        cells = params.n_ctx_swa if layer.is_swa else params.n_ctx
        if params.flash_attn:
            copies = self.placement.backend_rules[self.backend].f16_copies
            for kv_type, width in zip(params.kv_types, (k_width, v_width), strict=True):
                # CUDA keeps f16 copies of a cache in another type behind the result.
                if kv_type == _F32 or (kv_type != _F16 and copies):
                    size += 2 * width * cells
            return size + result
        size += 2 * result  # the second time permuted
        scores = column * layer.n_head * cells
        # Seen with gpt-oss on the CPU: hidden states between layers split the free memory.
        twice = self._is_partial and params.hidden_state_layers and "attn_sinks.weight" in tensors
        size += scores * (2 if twice else 1)
        if params.v_token_major or hparams.is_mla:  # V has to be transposed
            size += (4 if params.kv_types[1] == _F32 else 2) * v_width * cells
        return size

    def _feed_forward_bytes(self, il: int) -> int:
        """Dense: up, gate and their product, then down.  Experts: the same for each one used."""
        tensors = self.hparams.layer_tensors.get(il, {})
        column = 4 * self.params.n_ubatch
        dense = max(_width(tensors, "ffn_up.weight"), _width(tensors, "ffn_up_shexp.weight"))
        gate = any(name.startswith("ffn_gate") for name in tensors)
        size = (column * dense * (3 if gate else 2) + self.row) if dense else 0
        down = tensors.get("ffn_down_exps.weight")
        if down is not None:
            used = self.hparams.per_layer("expert_used_count")[il]
            experts = column * used * (3 * down.shape[0] + self.hparams.n_embd)
            experts += 2 * column * self.hparams.number("expert_count")  # the router
            # The results of shared experts, or of a dense part beside, stay meanwhile.
            size = max(size, experts) + (2 if dense else 1) * self.row
        return size

    def _recurrent_bytes(self, tensors: dict[str, TensorInfo]) -> int:
        hparams, params = self.hparams, self.params
        column = 4 * params.n_ubatch
        if "shortconv.in_proj.weight" in tensors:
            return 7 * self.row
        inner = hparams.number("ssm.inner_size")
        channels = inner + 2 * hparams.number("ssm.group_count") * hparams.number("ssm.state_size")
        # The state is fetched, and each snapshot for rollback is part of the result.
        snapshots = 4 * (params.n_rs_seq + 1) * (hparams.n_embd_s + hparams.n_embd_r)
        if self.is_cpu and self._is_partial:
            # The GPU computes.  Each snapshot of the convolution is a view of all its input, and
            # the scheduler copies a view with everything between its first and its last byte.
            return column * ((params.n_rs_seq + 2) * channels + inner) + snapshots
        return column * 4 * (channels + inner) + 2 * snapshots

    def _copied_bytes(self, il: int, *, layer_on_cpu: bool) -> int:
        """Weights and cache that the first GPU copies from system memory.

        Two matrices of experts, one of which is in use while the next is copied; one other matrix.
        """
        tensors = self.hparams.layer_tensors.get(il, {})
        experts = [t.n_bytes for name, t in tensors.items() if EXPERT_TENSORS.match(name)]
        size = 2 * max(experts, default=0)
        if not layer_on_cpu:
            return size
        size = max(size, max((tensor.n_bytes for tensor in tensors.values()), default=0))
        return size + self._cache_bytes(self.hparams.kv_source_layer(il))

    def _cache_bytes(self, il: int) -> int:
        layer = self.hparams.layers[il]
        return kv_buffers.layer_cache_bytes(self.hparams, layer, self.params)

    def _crossing_bytes(self) -> int:
        """What a batch brings along from another device, once for each copy of the pipeline."""
        hparams, placement = self.hparams, self.placement
        if placement.cpu_backend < 2 and (placement.fully_offloaded or not placement.cpu_backend):
            return 0
        size = self.row
        if hparams.has_recurrent_state:
            size += 8 * self.params.n_ubatch * hparams.number("ssm.inner_size")
        if hparams.number("attention.shared_kv_layers"):
            here = [il for il in self.layer_numbers if placement.layer_backends[il] == self.backend]
            sources = {hparams.kv_source_layer(il) for il in here}
            size += sum(
                self._cache_bytes(il)
                for il in sources
                if placement.layer_backends[il] != self.backend
            )
        return size * placement.n_copies

    def _mask_bytes(self) -> int:
        """One mask for all layers of a kind; a transposed V cache also has an index per element."""
        params, layers, homes = self.params, self.hparams.layers, self.placement.layer_backends
        # The first GPU also computes layers on the CPU.
        here = {self.backend} | ({self.placement.cpu_backend} if self.backend == 0 else set())
        used = [
            layers[il]
            for il in self.layer_numbers
            if (self.is_cpu or homes[il] in here)
            and not layers[il].is_recurrent
            and layers[il].n_head_kv
        ]
        size = 0
        for is_swa in {layer.is_swa for layer in used}:
            cells = params.n_ctx_swa if is_swa else params.n_ctx
            size += cells * params.n_ubatch * (2 if params.flash_attn else 4)
            if not params.v_token_major:
                width = max(kv_buffers.value_width(self.hparams, layer, params) for layer in used)
                size += 8 * params.n_ubatch * width
        return size

    def _per_layer_input_bytes(self) -> int:
        """Gemma 3n and 4 E: an embedding for each layer, its projection and their sum."""
        width = self.hparams.number("embedding_length_per_layer_input")
        size = 4 * self.params.n_ubatch * width * self.hparams.n_layer
        if self.is_cpu and self.placement.cpu_backend:
            return 2 * size
        return size * (3 if self.placement.n_copies == 1 else 2 + 2 * self.placement.n_copies)

    def _given_hidden_state_bytes(self) -> int:
        """Hidden states extracted for a head are never overwritten."""
        if self.placement.output_backend != self.backend and not self.params.hidden_state_layers:
            return 0
        n = len(self.params.hidden_state_layers) + self.params.keeps_last_hidden_state
        return n * self.row

    def _output_bytes(self) -> int:
        """Logits, and the rows they are computed from; a head computes all rows."""
        hparams, params, placement = self.hparams, self.params, self.placement
        rows = params.n_ubatch if params.head_kind else params.n_outputs_max
        home, matrix_bytes = self._output_matrix()
        copied = 0
        if home == placement.cpu_backend and self.backend == 0 and rows >= OFFLOAD_MIN_BATCH:
            copied = matrix_bytes * bool(placement.cpu_backend)
        elif self.backend not in (home, placement.output_backend):
            return 0
        n_vocab = params.n_vocab or hparams.n_vocab
        # Logits of a reduced vocabulary are spread over the whole one.
        logits = 1 + 2 * ("d2t" in hparams.global_tensors) + (copied > 0)
        return copied + 4 * rows * (logits * n_vocab + 2 * hparams.n_embd)

    def _output_matrix(self) -> tuple[int, int]:
        """Backend and bytes of the output matrix, which a head may borrow from its target."""
        tensors, placement = self.hparams.global_tensors, self.placement
        names = ["output.weight"] + ["token_embd.weight"] * (self.params.head_kind != "eagle3")
        own = next((tensors[name] for name in names if name in tensors), None)
        if own is not None:
            return placement.output_backend, own.n_bytes
        device, size = self.params.target_output_matrix
        if device in placement.backend_names:
            return placement.backend_names.index(device), size
        return placement.output_backend, size


def _width(tensors: dict[str, TensorInfo], name: str) -> int:
    return tensors[name].shape[1] if name in tensors else 0
