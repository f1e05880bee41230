"""Cost of one pass of a model: the bytes it reads on each device, and the time that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from localspec.fit import hparams as model_hparams
from localspec.fit import layer_placement
from localspec.fit.device_speed import DeviceSpeed, HardwareSpeed
from localspec.fit.hparams import LayerHparams, ModelHparams
from localspec.fit.layer_placement import LayerPlacement
from localspec.fit.model_buffers import EXPERT_TENSORS
from localspec.lazy_dataclass import dataclass
from localspec.machine import llama_params
from localspec.machine.device import Device
from localspec.models.gguf.header import Header
from localspec.models.gguf.tensors import GGML_TYPES, TensorInfo
from localspec.protocol.wire import ContextSettings

_EMBEDDING_TABLES = (
    "token_embd.weight",
    "position_embd.weight",
    "per_layer_token_embd.weight",
    "markov_w1.weight",
    "nextn.embed_tokens.weight",
)
"""A pass reads one row per token of these."""
_UNUSED_TENSORS = ("token_types.weight", "v.", "mm.", "a.")
"""A constant row, and the vision and audio encoders."""
_MOE_SLOWDOWN = 1.36
"""Mixtures of experts take longer than their bytes suggest: 206 and 96 tok/s estimated, 152 and 71
measured (30B with 3B active, RX 7900 XT and M4 Pro)."""
_CPU_ATTENTION_SLOWDOWN = 2.3
"""Attention on a CPU, relative to reading as many bytes of weights (3.0 and 6.9 GB/s, 1 thread)."""
_DEVICE_CROSSING_MS = 0.045
"""Copying activations from one device to the next: 30 to 60 µs."""


@dataclass(slots=True)
class DeviceReads:
    """Bytes read for one token on one device."""

    dense: float = 0.0
    """Weights that every token reads."""
    experts: float = 0.0
    """Weights of the experts one token uses."""
    kv_cache: float = 0.0
    """The KV cache in use, and recurrent states, read and written."""
    attention: float = 0.0
    """The same, counted once for each attention head that reads it."""
    layer_share: float = 0.0
    """Share of the model's layers on this device."""

    @property
    def weights(self) -> float:
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class PassReads:
    """What one token of a model reads."""

    by_device: Mapping[str, DeviceReads]
    """By device name; devices in use only."""
    weight_type: str
    """The most common quantisation by bytes, such as Q4_K."""
    n_expert: int = 0
    n_expert_used: int = 0
    n_embd: int = 0

    @property
    def weights(self) -> float:
        return sum(part.weights for part in self.by_device.values())

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.by_device)

    @property
    def is_moe(self) -> bool:
        return self.n_expert > 1

    def experts_used_ratio(self, width: int) -> float:
        """Distinct experts used by a batch of `width` tokens, relative to one token."""
        share = self.n_expert_used / self.n_expert
        return float((1 - (1 - share) ** width) / share)


def count_reads(
    header: Header, settings: ContextSettings, devices: Sequence[Device], context: int = 0
) -> PassReads:
    """Reads of one token with `context` tokens in the cache, layers placed as by llama.cpp."""
    hparams = model_hparams.from_header(header)
    placement = layer_placement.place_layers(hparams, settings, devices, {})
    reads = [DeviceReads() for _ in placement.backend_names]
    types: Counter[str] = Counter()
    n_expert = hparams.number("expert_count")
    n_used = min(hparams.number("expert_used_count", n_expert), n_expert)
    for tensor, backend, is_expert in _tensors_read(hparams, placement):
        if is_expert and n_expert:
            n_bytes = tensor.n_bytes * n_used / n_expert
            reads[backend].experts += n_bytes
        else:
            n_bytes = _tensor_read_bytes(tensor)
            reads[backend].dense += n_bytes
        types[tensor.type_name] += int(n_bytes)
    _add_cache_reads(reads, hparams, placement, settings, context)
    for backend in placement.layer_backends[: hparams.n_layer]:
        reads[backend].layer_share += 1 / max(1, hparams.n_layer)
    by_device = {
        name: part
        for name, part in zip(placement.backend_names, reads, strict=True)
        if part.weights
    }
    return PassReads(by_device, _most_common(types), n_expert, n_used, hparams.n_embd)


def count_head_reads(
    headers: tuple[Header, Header],
    kind: str,
    settings: ContextSettings,
    devices: Sequence[Device],
    context: int = 0,
) -> PassReads:
    """Reads of one row of a head; `headers` are the target's and the head's.

    A head without an output matrix reads the target's.
    """
    target, head = headers
    if kind == "mtp":
        return _count_mtp_reads(target, settings, devices, context)
    reads = count_reads(head, settings, devices, context)
    for part in reads.by_device.values():
        # The fixed time of a pass was measured for whole models; a head has few layers.
        part.layer_share *= head.n_layer / max(1, target.n_layer)
    output_names = {"output.weight"} if kind == "eagle3" else {"output.weight", "token_embd.weight"}
    if output_names & {tensor.name for tensor in head.tensors}:
        return reads
    return _add_output_matrix(reads, target)


def _count_mtp_reads(
    target: Header, settings: ContextSettings, devices: Sequence[Device], context: int
) -> PassReads:
    hparams = model_hparams.from_header(target, load_mtp=True)
    placement = layer_placement.place_layers(hparams, settings, devices, {})
    part = DeviceReads(layer_share=1 / max(1, hparams.n_layer))
    types: Counter[str] = Counter()
    for il in range(hparams.n_layer, hparams.n_layer_all):
        for tensor in hparams.layer_tensors.get(il, {}).values():
            part.dense += _tensor_read_bytes(tensor._replace(name=tensor.name.split(".", 2)[2]))
            types[tensor.type_name] += tensor.n_bytes
    layer = hparams.layers[hparams.n_layer]
    part.kv_cache = _kv_read_bytes(hparams, layer, settings, context)
    part.attention = part.kv_cache * max(1.0, layer.n_head / max(1, layer.n_head_kv))
    device = placement.backend_names[placement.layer_backends[hparams.n_layer]]
    reads = PassReads({device: part}, _most_common(types))
    own_output = f"blk.{hparams.n_layer}.nextn.shared_head_head.weight"
    if any(tensor.name == own_output for tensor in target.tensors):
        return reads
    return _add_output_matrix(reads, target)


def _add_output_matrix(head: PassReads, target: Header) -> PassReads:
    """Adds the target's output matrix to the last device of the head."""
    tensors = {tensor.name: tensor for tensor in target.tensors}
    matrix = tensors.get("output.weight") or tensors.get("token_embd.weight")
    name = next(reversed(head.devices))
    part = replace(
        head.by_device[name], dense=head.by_device[name].dense + (matrix.n_bytes if matrix else 0)
    )
    return replace(head, by_device={**head.by_device, name: part})


def _tensors_read(
    hparams: ModelHparams, placement: LayerPlacement
) -> Iterator[tuple[TensorInfo, int, bool]]:
    """Tensors read for a token: the tensor, its backend, and whether it holds experts."""
    for il, tensors in hparams.layer_tensors.items():
        if il >= hparams.n_layer:
            continue  # MTP layers
        for name, tensor in tensors.items():
            is_expert = EXPERT_TENSORS.match(name) is not None
            on_cpu = is_expert and placement.experts_on_cpu
            backend = placement.cpu_backend if on_cpu else placement.layer_backends[il]
            yield tensor, backend, is_expert
    for name, tensor in hparams.global_tensors.items():
        if name in _EMBEDDING_TABLES:
            yield tensor, placement.layer_backends[0], False
        elif not name.startswith(_UNUSED_TENSORS):
            yield tensor, placement.output_backend, False
    if hparams.has_tied_output:
        table = hparams.global_tensors["token_embd.weight"]
        yield table._replace(name="output.weight"), placement.output_backend, False


def _tensor_read_bytes(tensor: TensorInfo) -> float:
    if tensor.name in _EMBEDDING_TABLES and len(tensor.shape) > 1:
        return tensor.n_bytes / tensor.shape[1]
    return tensor.n_bytes


def _add_cache_reads(
    reads: list[DeviceReads],
    hparams: ModelHparams,
    placement: LayerPlacement,
    settings: ContextSettings,
    context: int,
) -> None:
    states = 2 * 4 * (hparams.n_embd_r + hparams.n_embd_s)
    for il, layer in enumerate(hparams.layers[: hparams.n_layer]):
        part = reads[placement.layer_backends[il]]
        if layer.has_kv:
            n_bytes = _kv_read_bytes(hparams, layer, settings, context)
            part.kv_cache += n_bytes
            part.attention += n_bytes * max(1.0, layer.n_head / layer.n_head_kv)
        if layer.is_recurrent:
            part.kv_cache += states
            part.attention += states


def _kv_read_bytes(
    hparams: ModelHparams, layer: LayerHparams, settings: ContextSettings, context: int
) -> float:
    widths = (layer.n_embd_head_k, 0 if hparams.is_mla else layer.n_embd_head_v)
    n_bytes = 0.0
    for kv_type, width in zip(llama_params.KV_TYPES[settings.kv_type], widths, strict=True):
        _, block, block_bytes = GGML_TYPES[kv_type]
        n_bytes += width * block_bytes / block
    cells = min(context, hparams.n_swa) if layer.is_swa else context
    return layer.n_head_kv * cells * n_bytes


def _most_common(types: Counter[str]) -> str:
    return types.most_common(1)[0][0] if types else ""


_REQUEST_BYTES = 5000
_ACTIVATION_BYTES = 4
"""Of a number of a hidden state on the wire."""


def find_speed(reads: PassReads, device: str, hardware: HardwareSpeed) -> DeviceSpeed:
    return hardware.find_speed(device, reads.weight_type, reads.by_device[device].weights)


def explain_unknown(reads: PassReads, hardware: HardwareSpeed) -> str:
    """The reason why the speed cannot be estimated; empty if it can."""
    for device in reads.devices:
        speed = find_speed(reads, device, hardware)
        if speed.bandwidth is None:
            return f"{device}: {speed.basis}"
    return ""


def estimate_ms(reads: PassReads, hardware: HardwareSpeed, width: int = 1) -> float:
    """Milliseconds of a pass of `width` tokens.  Requires known bandwidths (`explain_unknown`)."""
    ms = sum(_device_ms(reads, device, hardware, width) for device in reads.devices)
    ms += _DEVICE_CROSSING_MS * (len(reads.devices) - 1)
    return ms * moe_slowdown(reads.is_moe) + _network_ms(reads, hardware, width)


def _network_ms(reads: PassReads, hardware: HardwareSpeed, width: int) -> float:
    """A round trip to each worker in the chain, with the activations of each token there and back.

    The width is as that of the pass before; a change sends the graph again.
    """
    ms = 0.0
    for line in (hardware.lines[name] for name in reads.devices if name in hardware.lines):
        n_bytes = _REQUEST_BYTES + 2 * _ACTIVATION_BYTES * width * reads.n_embd
        ms += line.round_trip_ms + 1e3 * n_bytes / line.bytes_per_second
    return ms


def moe_slowdown(is_moe: bool) -> float:
    """Factor on the time estimated from bytes."""
    return _MOE_SLOWDOWN if is_moe else 1.0


def estimate_verify_curve(
    reads: PassReads, hardware: HardwareSpeed, widest: int
) -> dict[int, float]:
    """The verify curve v: pass time by width, in one-token passes."""
    t1 = estimate_ms(reads, hardware)
    return {width: estimate_ms(reads, hardware, width) / t1 for width in range(1, widest + 1)}


def relative_error(reads: PassReads, hardware: HardwareSpeed) -> float:
    """Relative error of the pass time: the devices' errors, weighted by their time."""
    ms = {name: _device_ms(reads, name, hardware, 1) for name in reads.devices}
    total = sum(ms.values())
    if not total:
        return 0.0
    return sum(ms[name] * find_speed(reads, name, hardware).error for name in ms) / total


def _device_ms(reads: PassReads, device: str, hardware: HardwareSpeed, width: int) -> float:
    """The fixed time scales with the width too, as in the measured curves of small models."""
    part, weight_type = reads.by_device[device], reads.weight_type
    speed = find_speed(reads, device, hardware)
    ms = part.layer_share * speed.fixed_ms + speed.read_ms(part.dense)
    ms *= speed.verify_cost(width, weight_type)
    ms += _device_context_ms(part, speed, width, weight_type)
    if part.experts:
        ms += speed.read_ms(part.experts) * _expert_cost(reads, width, speed)
    return ms


def _device_context_ms(
    part: DeviceReads, speed: DeviceSpeed, width: int, weight_type: str
) -> float:
    """Attention is bound by compute on a CPU, by memory on a GPU."""
    if speed.kind == "cpu":
        return _CPU_ATTENTION_SLOWDOWN * speed.read_ms(part.attention) * width
    return speed.read_ms(part.kv_cache) * speed.verify_cost(width, weight_type)


def _expert_cost(reads: PassReads, width: int, speed: DeviceSpeed) -> float:
    """A wider batch uses more experts, each for fewer tokens."""
    ratio = reads.experts_used_ratio(width)
    return ratio * speed.verify_cost(width / ratio, reads.weight_type)
