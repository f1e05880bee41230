"""What a model reads for one token, on each device: weights, experts, keys and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.fit import hparams as of_models
from localspec.fit import layer_placement as placing
from localspec.fit.device_speed import DeviceSpeed, HardwareSpeed
from localspec.fit.hparams import LayerHparams, ModelHparams
from localspec.fit.layer_placement import LayerPlacement
from localspec.fit.model_buffers import EXPERT_TENSORS
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
"""Of these one row is read."""
_UNUSED_TENSORS = ("token_types.weight", "v.", "mm.", "a.")
"""One constant row, and what sees or hears."""


@dataclass(slots=True)
class DeviceReads:
    """One device's part, in bytes for a token."""

    dense: float = 0.0
    """Weights that every token reads."""
    experts: float = 0.0
    """Those of the experts that one token is sent to."""
    kv_cache: float = 0.0
    """Keys and values of the context in use, and recurrent states, which are also written."""
    attention: float = 0.0
    """The same counted once for each head that looks at it."""
    layer_share: float = 0.0
    """Of the model's layers."""

    @property
    def weights(self) -> float:
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class PassReads:
    """One model's token."""

    by_device: Mapping[str, DeviceReads]
    """By the device's name; only devices that are used."""
    weight_type: str
    """The type of most of what is read: Q4_K."""
    n_expert: int = 0
    n_expert_used: int = 0

    @property
    def weights(self) -> float:
        """Bytes of weights."""
        return sum(part.weights for part in self.by_device.values())

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.by_device)

    @property
    def is_moe(self) -> bool:
        return self.n_expert > 1

    def experts_used_ratio(self, width: int) -> float:
        """Experts of a layer that so many tokens at once are sent to, in those of one token."""
        share = self.n_expert_used / self.n_expert
        return float((1 - (1 - share) ** width) / share)


def has_all_tensors(header: Header) -> bool:
    """Whether its table names all tensors: the first file of several names its own only."""
    split = header.split
    return split is None or split.count <= 1 or len(header.tensors) >= split.n_tensors


def count_reads(
    header: Header, settings: ContextSettings, devices: Sequence[Device], context: int = 0
) -> PassReads:
    """With so many tokens in the context; layers lie where llama.cpp would place them."""
    facts = of_models.from_header(header)
    placement = placing.place_layers(facts, settings, devices, {})
    parts = [DeviceReads() for _ in placement.backend_names]
    types: Counter[str] = Counter()
    experts = facts.number("expert_count")
    used = min(facts.number("expert_used_count", experts), experts)
    for tensor, at, expert in _tensors_read(facts, placement):
        if expert and experts:
            n_bytes = tensor.n_bytes * used / experts
            parts[at].experts += n_bytes
        else:
            n_bytes = _tensor_read_bytes(tensor)
            parts[at].dense += n_bytes
        types[tensor.type_name] += int(n_bytes)
    _add_cache_reads(parts, facts, placement, settings, context)
    for at in placement.layer_backends[: facts.n_layer]:
        parts[at].layer_share += 1 / max(1, facts.n_layer)
    on = {
        name: part
        for name, part in zip(placement.backend_names, parts, strict=True)
        if part.weights
    }
    family = types.most_common(1)[0][0] if types else ""
    return PassReads(on, family, experts, used)


def count_head_reads(
    headers: tuple[Header, Header],
    kind: str,
    settings: ContextSettings,
    devices: Sequence[Device],
    context: int = 0,
) -> PassReads:
    """A row of a head beside its target: without an output of its own it uses the target's."""
    if kind != "mtp":
        found = count_reads(headers[1], settings, devices, context)
        layers = headers[1].n_layer / max(1, headers[0].n_layer)
        for part in found.by_device.values():
            part.layer_share *= layers  # what a pass takes besides reading was measured for models
        lacks = {"output.weight"}
        lacks |= {"token_embd.weight"} if kind != "eagle3" else set()
        own = {tensor.name for tensor in headers[1].tensors}
        return found if lacks & own else _add_output_matrix(found, headers[0])
    facts = of_models.from_header(headers[0], load_mtp=True)
    placement = placing.place_layers(facts, settings, devices, {})
    at, part = (
        placement.layer_backends[facts.n_layer],
        DeviceReads(layer_share=1 / max(1, facts.n_layer)),
    )
    types: Counter[str] = Counter()
    for tensors in (
        facts.layer_tensors.get(il, {}) for il in range(facts.n_layer, facts.n_layer_all)
    ):
        for tensor in tensors.values():
            part.dense += _tensor_read_bytes(tensor._replace(name=tensor.name.split(".", 2)[2]))
            types[tensor.type_name] += tensor.n_bytes
    layer = facts.layers[facts.n_layer]
    _, block, block_bytes = GGML_TYPES[llama_params.KV_TYPES[settings.kv_type]]
    cells = min(context, facts.n_swa) if layer.is_swa else context
    part.kv_cache = _kv_width(facts, layer) * cells * block_bytes / block
    part.attention = part.kv_cache * max(1.0, layer.n_head / max(1, layer.n_head_kv))
    found = PassReads(
        {placement.backend_names[at]: part}, types.most_common(1)[0][0] if types else ""
    )
    own_output = f"blk.{facts.n_layer}.nextn.shared_head_head.weight"
    has = any(tensor.name == own_output for tensor in headers[0].tensors)
    return found if has else _add_output_matrix(found, headers[0])


def _add_output_matrix(head: PassReads, target: Header) -> PassReads:
    """The target's output matrix is read where the head lies last."""
    table = {tensor.name: tensor for tensor in target.tensors}
    matrix = table.get("output.weight") or table.get("token_embd.weight")
    name = next(reversed(head.devices))
    part = replace(
        head.by_device[name], dense=head.by_device[name].dense + (matrix.n_bytes if matrix else 0)
    )
    return replace(head, by_device={**head.by_device, name: part})


def _tensors_read(
    hparams: ModelHparams, placement: LayerPlacement
) -> Iterator[tuple[TensorInfo, int, bool]]:
    """Those a token needs, with the number of the device and whether they are experts'."""
    for il, tensors in hparams.layer_tensors.items():
        if il >= hparams.n_layer:
            continue  # layers that guess ahead
        for name, tensor in tensors.items():
            expert = EXPERT_TENSORS.match(name) is not None
            away = expert and placement.experts_on_cpu
            yield tensor, placement.cpu_backend if away else placement.layer_backends[il], expert
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
    parts: list[DeviceReads],
    hparams: ModelHparams,
    placement: LayerPlacement,
    settings: ContextSettings,
    context: int,
) -> None:
    _, block, block_bytes = GGML_TYPES[llama_params.KV_TYPES[settings.kv_type]]
    states = 2 * 4 * (hparams.n_embd_r + hparams.n_embd_s)
    for il, layer in enumerate(hparams.layers[: hparams.n_layer]):
        part = parts[placement.layer_backends[il]]
        if layer.has_kv:
            cells = min(context, hparams.n_swa) if layer.is_swa else context
            n_bytes = _kv_width(hparams, layer) * cells * block_bytes / block
            part.kv_cache += n_bytes
            part.attention += n_bytes * max(1.0, layer.n_head / layer.n_head_kv)
        if layer.is_recurrent:
            part.kv_cache += states
            part.attention += states


def _kv_width(hparams: ModelHparams, layer: LayerHparams) -> int:
    values = 0 if hparams.is_mla else layer.n_embd_head_v
    return layer.n_head_kv * (layer.n_embd_head_k + values)


# --- How long one pass of a model takes, from what it reads and how fast its devices read.

_MOE_SLOWDOWN = 1.36
"""A mixture of experts takes longer than its bytes say: 206 and 96 tok/s foretold, 152 and 71 seen
(30B with 3B active, RX 7900 XT and M4 Pro)."""
_CPU_ATTENTION_SLOWDOWN = 2.3
"""A CPU's attention, against reading as many bytes of weights (3.0 and 6.9 GB/s at one thread)."""
_DEVICE_CROSSING_MS = 0.045
"""Handing the state from one device to the next: 30 to 60 µs."""


def find_speed(reads: PassReads, device: str, hardware: HardwareSpeed) -> DeviceSpeed:
    """How fast this device reads this model."""
    return hardware.find_speed(device, reads.weight_type, reads.by_device[device].weights)


def explain_unknown(reads: PassReads, hardware: HardwareSpeed) -> str:
    """Why nothing can be said of this model, or nothing."""
    for device in reads.devices:
        here = find_speed(reads, device, hardware)
        if here.bandwidth is None:
            return f"{device}: {here.basis}"
    return ""


def estimate_ms(reads: PassReads, hardware: HardwareSpeed, width: int = 1) -> float:
    """Milliseconds of a pass of so many tokens.  Only where nothing is `unknown`."""
    took = sum(_device_ms(reads, device, hardware, width) for device in reads.devices)
    took += _DEVICE_CROSSING_MS * (len(reads.devices) - 1)
    return took * moe_slowdown(reads.is_moe)


def moe_slowdown(is_moe: bool) -> float:
    """How many times longer than its bytes say a model takes."""
    return _MOE_SLOWDOWN if is_moe else 1.0


def estimate_context_ms(reads: PassReads, hardware: HardwareSpeed, width: int = 1) -> float:
    """What of a pass is reading the context."""
    return sum(
        _device_context_ms(part, find_speed(reads, name, hardware), width, reads.weight_type)
        for name, part in reads.by_device.items()
    )


def estimate_verify_curve(
    reads: PassReads, hardware: HardwareSpeed, widest: int
) -> dict[int, float]:
    """The verify curve v of this model here."""
    one = estimate_ms(reads, hardware)
    return {width: estimate_ms(reads, hardware, width) / one for width in range(1, widest + 1)}


def relative_error(reads: PassReads, hardware: HardwareSpeed) -> float:
    """How far a pass may be from this, by the devices that take most of it."""
    took = {name: _device_ms(reads, name, hardware, 1) for name in reads.devices}
    whole = sum(took.values())
    if not whole:
        return 0.0
    errors = {name: find_speed(reads, name, hardware).error for name in took}
    return sum(took[name] * errors[name] for name in took) / whole


def _device_ms(reads: PassReads, device: str, hardware: HardwareSpeed, width: int) -> float:
    """One device's milliseconds.  The fixed part grows with the width as the rest does: so small
    models' curves were measured."""
    part, family = reads.by_device[device], reads.weight_type
    here = find_speed(reads, device, hardware)
    dense = part.layer_share * here.fixed_ms + here.read_ms(part.dense)
    took = dense * here.verify_cost(width, family) + _device_context_ms(part, here, width, family)
    if part.experts:
        took += here.read_ms(part.experts) * _expert_cost(reads, width, here)
    return took


def _device_context_ms(
    part: DeviceReads, speed: DeviceSpeed, width: int, weight_type: str
) -> float:
    """On a CPU every head of every row computes for itself; a GPU's wait for the memory."""
    if speed.kind == "cpu":
        return _CPU_ATTENTION_SLOWDOWN * speed.read_ms(part.attention) * width
    return speed.read_ms(part.kv_cache) * speed.verify_cost(width, weight_type)


def _expert_cost(reads: PassReads, width: int, speed: DeviceSpeed) -> float:
    """More tokens are sent to more experts, each of which then computes for few of them."""
    touched = reads.experts_used_ratio(width)
    return touched * speed.verify_cost(width / touched, reads.weight_type)
