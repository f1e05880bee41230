"""What a pair will take of each device, before anything is loaded: by formulas, from headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from localspec.fit import (
    compute_buffers,
    context_params,
    hparams,
    kv_buffers,
    layer_placement,
    model_buffers,
)
from localspec.fit.context_params import ContextParams
from localspec.fit.hparams import ModelHparams, word_set
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST, DeviceMemory, MemoryByDevice, MemoryEstimate
from localspec.models import draft_heads
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand

_DRAFT_DROPPED_NOTE = "The draft cannot take back a guess, so it is not kept."


def estimate_pair(
    load: LoadCommand, target: Header, draft: Header | None, devices: Sequence[Device]
) -> MemoryEstimate:
    """Without llama.cpp, for cards that are not here.  Raises UsageError: the context is absurd."""
    head = (
        ""
        if draft is None
        else draft_heads.draft_kind_for_target(target, draft).replace("model", "")
    )
    inside = head == "mtp"
    first = hparams.from_header(target, load_mtp=inside)
    second = None if draft is None else first if inside else hparams.from_header(draft)
    note = ""
    if second is not None and second.has_recurrent_state and not head:
        second, note = None, _DRAFT_DROPPED_NOTE
    opened, opened_draft = context_params.for_pair(load, first, second, head)
    ledger = estimate_model(first, opened, load.target_settings, devices, {})
    beside: MemoryByDevice | None = None
    if second is not None and opened_draft is not None:
        before = ledger
        if (
            opened.hidden_state_layers and len(devices) > 1
        ):  # the states are kept only when it is loaded
            untapped = replace(opened, hidden_state_layers=frozenset())
            before = estimate_model(first, untapped, load.target_settings, devices, {})
        used = {name: part.total for name, part in before.on.items()}
        if head:
            matrix = _locate_output_matrix(first, load.target_settings, devices)
            opened_draft = replace(opened_draft, target_output_matrix=matrix)
        beside = estimate_model(second, opened_draft, load.draft_settings, devices, used)
    found = MemoryEstimate(ledger, beside, "analytic", note=note)
    models = [(first, opened)]
    if second is not None and opened_draft is not None:
        models.append((second, opened_draft))
    experts = load.target_settings.cpu_moe or load.draft_settings.cpu_moe
    return replace(found, error=error_bound(found, models, experts))


def _locate_output_matrix(
    target: ModelHparams, settings: ContextSettings, devices: Sequence[Device]
) -> tuple[str, int]:
    """Where the output matrix lies, and its bytes."""
    placed = layer_placement.place_layers(target, settings, devices, {})
    found = target.global_tensors.get("output.weight") or target.global_tensors.get(
        "token_embd.weight"
    )
    return placed.backend_names[placed.output_backend], found.n_bytes if found else 0


def estimate_model(
    model: ModelHparams,
    params: ContextParams,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> MemoryByDevice:
    """One model's part, where `used` bytes of each device have been taken."""
    placed = layer_placement.place_layers(model, settings, devices, used_bytes)
    if (
        params.flash_attn_auto
        and params.flash_attn
        and not compute_buffers.is_flash_attn_on_layer_device(model, params, placed)
    ):
        params = replace(params, flash_attn=False)
    sums = zip(
        placed.backend_names,
        (0,) * len(placed.backend_names)
        if params.head_kind == "mtp"
        else model_buffers.estimate(model, placed),
        kv_buffers.estimate(model, params, placed),
        compute_buffers.estimate(model, params, placed),
        strict=True,
    )
    on = {name: DeviceMemory(*parts) for name, *parts in sums}
    rows = 4 * params.n_outputs_max * (params.n_vocab or model.n_vocab)
    return MemoryByDevice(on, output=rows + params.hidden_state_bytes(model.n_embd))


# --- How far our formulas may be from what llama.cpp takes.

VERIFIED_ARCHITECTURES = word_set(
    "llama mistral3 smollm3 qwen2 qwen3 qwen3moe gemma2 gemma3 gemma4 gpt-oss phi3 deepseek2 "
    "mamba2 qwen35 qwen35moe granite granitehybrid lfm2 lfm2moe eagle3 dflash"
)
"""Architectures measured against llama.cpp itself: scripts/measure_estimate.py."""
_MIB = 1024 * 1024
_BASE_ERROR = 4 * _MIB
_COMPUTE_ERROR = 0.02
"""A card that is here differs from what llama.cpp thinks of it by so much of the graph's memory."""
_UNVERIFIED_BASE_ERROR = 64 * _MIB
_UNVERIFIED_COMPUTE_ERROR = 0.3
_ACTIVATION_COPIES = 4
"""Of a row of activations: where a batch crosses from one device to the next."""


def error_bound(
    memory_estimate: MemoryEstimate,
    models: Sequence[tuple[ModelHparams, ContextParams]],
    experts_on_cpu: bool = False,
) -> int:
    """Bytes by which a device's truth may differ."""
    graphs = [memory_estimate.of(name).compute for name in _device_names(memory_estimate)]
    checked = all(facts.arch in VERIFIED_ARCHITECTURES for facts, _ in models)
    error = int((_COMPUTE_ERROR if checked else _UNVERIFIED_COMPUTE_ERROR) * max(graphs, default=0))
    error += _BASE_ERROR if checked else _UNVERIFIED_BASE_ERROR
    error += sum(_BASE_ERROR for facts, _ in models if facts.has_recurrent_state)
    error += sum(4 * o.n_ubatch * facts.n_embd for facts, o in models if o.keeps_last_hidden_state)
    if len(_device_names(memory_estimate) - {HOST}) > 1 or _is_partially_offloaded(memory_estimate):
        error += sum(_ACTIVATION_COPIES * 4 * o.n_ubatch * facts.n_embd for facts, o in models)
    if experts_on_cpu and _device_names(memory_estimate) != {HOST}:
        error += max(map(_largest_tensor_bytes, (facts for facts, _ in models)))
    return error


def _largest_tensor_bytes(model: ModelHparams) -> int:
    """A layer's largest matrix: it may be copied to a card while the one before is still there."""
    layer = model.layer_tensors.get(model.n_layer - 1, {})
    return max((tensor.n_bytes for tensor in layer.values()), default=0)


def _device_names(memory_estimate: MemoryEstimate) -> set[str]:
    names = set(memory_estimate.target.on)
    return names | set(memory_estimate.draft.on) if memory_estimate.draft else names


def _is_partially_offloaded(memory_estimate: MemoryEstimate) -> bool:
    """Layers both on a card and beside it."""
    ledgers = [ledger for ledger in (memory_estimate.target, memory_estimate.draft) if ledger]
    cards = _device_names(memory_estimate) - {HOST}
    return bool(cards) and any(ledger.of(HOST).kv > 0 for ledger in ledgers)
