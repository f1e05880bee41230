"""Speed of devices, and the cost of one pass of a model: the bytes it reads, and its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import inf
from typing import Literal

from localspec.fit import placement, speedup_model
from localspec.fit.shape import LayerShape, ModelShape
from localspec.lazy_dataclass import dataclass
from localspec.machine import gpu_catalog, llama_params
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST
from localspec.models.gguf.tensors import GGML_TYPES
from localspec.protocol.wire import ContextSettings

CurveKind = Literal["gpu", "metal", "cpu"]  # Selects the typical verify curve.

EFFICIENCY = 0.75  # Typical share of peak bandwidth reached: 0.68 to 0.84 on the GPUs examined.
FIXED_MS = {"gpu": 1.5, "metal": 1.5, "cpu": 0.3}
"""Fixed time of a pass, whatever the model size: kernel launches."""

TABLE_ERROR = 0.25  # Relative error of a one-token pass estimated from gpus.yaml.
CALIBRATED_ERROR = 0.08  # The same if passes were measured on this machine.
ASSUMED_ERROR = 0.5  # The same if the bandwidth is only typical of such computers.

_MAX_EXTRAPOLATION = 10  # A measured speed is accurate for models up to this many times larger.

UNQUANTIZED_TYPES = ("F32", "F16", "BF16")
_TYPICAL_VERIFY_CURVES: dict[tuple[CurveKind, bool], Mapping[int, float]] = {
    ("gpu", True): {1: 1.0, 8: 2.26, 17: 3.16},
    ("gpu", False): {1: 1.0, 8: 1.9, 17: 2.5},
    ("metal", True): {1: 1.0, 17: 11.9},
    ("metal", False): {1: 1.0, 8: 1.6, 17: 2.4},
    ("cpu", True): {1: 1.0, 2: 1.5, 4: 2.0, 5: 3.0, 8: 3.2, 17: 6.0},
    ("cpu", False): {1: 1.0, 2: 1.0, 4: 1.25, 8: 1.7, 17: 2.8},
}
"""Verify curves used until one is measured, by kind and whether the weights are quantised.

GPU: 2.39 at 8 (RTX 3090, 27B), 2.08 (0.6B), and nearly flat from there to 16.  Metal: 6.5 at 8
(M4, 27B), 4.6 and in BF16 1.6 (0.6B).  CPU: 1.15 to 2.5 at 2 with one thread; quantised weights
have a step from 4 to 5.
"""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    bandwidth: float | None
    """Peak GB/s; None if unknown: then models on this device have no speed estimate."""
    efficiency: float = EFFICIENCY  # Share of the bandwidth reached.
    fixed_ms: float = FIXED_MS["gpu"]
    kind: CurveKind = "gpu"
    verify_curve: Mapping[int, float] = field(default_factory=dict)
    """As measured; empty for the typical one."""
    error: float = TABLE_ERROR
    basis: str = ""  # The source of these numbers, shown to the user.
    measured: bool = False
    largest_measured: float = inf  # Bytes of the largest model measured.

    def read_ms(self, n_bytes: float) -> float:
        """Milliseconds to read `n_bytes`, without the fixed time.  Requires a known bandwidth."""
        assert self.bandwidth is not None
        return n_bytes / (self.efficiency * self.bandwidth * 1e6)

    def verify_cost(self, width: float, weight_type: str) -> float:
        """Cost of a pass of `width` tokens, in one-token passes."""
        curve = (
            self.verify_curve
            or _TYPICAL_VERIFY_CURVES[self.kind, weight_type not in UNQUANTIZED_TYPES]
        )
        return speedup_model.interpolate_curve(curve, width)


UNKNOWN_SPEED = DeviceSpeed(None, error=ASSUMED_ERROR, basis="memory bandwidth unknown")
UNKNOWN_CPU_SPEED = DeviceSpeed(
    None, 0.7, FIXED_MS["cpu"], "cpu", error=ASSUMED_ERROR, basis="not measured yet"
)
TYPICAL_CPU_SPEED = DeviceSpeed(
    50.0,
    0.6,
    FIXED_MS["cpu"],
    "cpu",
    error=ASSUMED_ERROR,
    basis="50 GB/s assumed (dual-channel DDR4), not measured yet",
)
"""A rough assumption; show it with its basis."""


@dataclass(frozen=True, slots=True)
class NetworkLine:
    """The line to a worker, as measured before loading."""

    round_trip_ms: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class HardwareSpeed:
    """Speeds of all devices of a machine."""

    devices: tuple[Device, ...]  # Devices that layers can be offloaded to.
    nominal_speeds: Mapping[str, DeviceSpeed]  # By device name; the CPU under HOST.
    lines: Mapping[str, NetworkLine] = field(default_factory=dict)  # By name of a worker's device.
    measured_speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    """By device and weight type; the type "" applies to types not measured."""
    acceptance: Mapping[tuple[str, ...], Mapping[str, float]] = field(default_factory=dict)
    """Rates that drafts reached here, by the paths of the pair; by `greedy` and `coupled`."""

    def find_speed(self, device: str, weight_type: str, n_bytes: float = 0) -> DeviceSpeed:
        """The speed for a model with this weight type that reads `n_bytes` per token here.

        Once a device was measured, all models are estimated from its measurements: those of a list
        are comparable.
        """
        for key in ((device, weight_type), (device, "")):
            if (speed := self.measured_speeds.get(key)) is None:
                continue
            if n_bytes <= _MAX_EXTRAPOLATION * speed.largest_measured:
                return speed
            basis = f"{speed.basis}, far smaller"
            return replace(speed, error=ASSUMED_ERROR, measured=False, basis=basis)
        return self.nominal_speeds.get(device, UNKNOWN_SPEED)


def from_devices(devices: Sequence[Device], cpu: DeviceSpeed = UNKNOWN_CPU_SPEED) -> HardwareSpeed:
    """Nominal speeds from gpus.yaml; without devices, the CPU computes everything."""
    return HardwareSpeed(
        tuple(devices), {device.name: _nominal_speed(device) for device in devices} | {HOST: cpu}
    )


def _nominal_speed(device: Device) -> DeviceSpeed:
    if device.worker and device.backend == HOST:
        return TYPICAL_CPU_SPEED
    kind: CurveKind = "metal" if device.backend in ("Metal", "MTL") else "gpu"
    spec = gpu_catalog.match_device(device)
    if spec is None:
        return DeviceSpeed(None, kind=kind, error=ASSUMED_ERROR, basis="memory bandwidth unknown")
    caveat = ", unconfirmed" if "bandwidth" in spec.unconfirmed else ""
    basis = f"{spec.bandwidth:g} GB/s{caveat} ({spec.name})"
    return DeviceSpeed(spec.bandwidth, fixed_ms=FIXED_MS[kind], kind=kind, basis=basis)


_MOE_SLOWDOWN = 1.36
"""Mixtures of experts take longer than their bytes suggest: 206 and 96 tok/s estimated, 152 and 71
measured (30B with 3B active, RX 7900 XT and M4 Pro)."""
_CPU_ATTENTION_SLOWDOWN = 2.3
"""Attention on a CPU, relative to reading as many bytes of weights (3.0 and 6.9 GB/s, 1 thread)."""
_DEVICE_CROSSING_MS = 0.045  # Copying activations from one device to the next: 30 to 60 µs.


@dataclass(slots=True)
class DeviceReads:
    """Bytes read for one token on one device."""

    dense: float = 0.0  # Weights that every token reads.
    experts: float = 0.0  # Weights of the experts one token uses.
    kv_cache: float = 0.0  # The KV cache in use, and recurrent states, read and written.
    attention: float = 0.0  # The same, counted once for each attention head that reads it.
    layer_share: float = 0.0  # Share of the model's layers on this device.

    @property
    def weights(self) -> float:
        return self.dense + self.experts


@dataclass(frozen=True, slots=True)
class PassReads:
    """What one token of a model reads."""

    by_device: Mapping[str, DeviceReads]  # By device name; devices in use only.
    weight_type: str  # The most common quantisation by bytes, such as Q4_K.
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
    shape: ModelShape, settings: ContextSettings, devices: Sequence[Device], context: int = 0
) -> PassReads:
    """Reads of one token with `context` tokens in the cache, layers placed as by llama.cpp."""
    placed = placement.place_layers(shape, settings, devices, {})
    reads = [DeviceReads() for _ in placed.backend_names]
    share = shape.n_expert_used / shape.n_expert if shape.n_expert else 1.0
    states = 8 * (shape.n_embd_r + shape.n_embd_s)
    for il in range(shape.n_layer):
        layer, home = shape.layers[il], placed.layer_backends[il]
        part = reads[home]
        part.dense += layer.weights
        reads[placed.cpu_backend if placed.experts_on_cpu else home].experts += (
            layer.experts * share
        )
        part.layer_share += 1 / shape.n_layer
        n_bytes = _kv_read_bytes(shape, layer, settings, context) if layer.has_kv else 0.0
        state_bytes = states * layer.is_recurrent
        part.kv_cache += n_bytes + state_bytes
        part.attention += n_bytes * layer.queries_per_kv + state_bytes
    reads[placed.output_backend].dense += shape.output_reads
    by_device = {
        name: part for name, part in zip(placed.backend_names, reads, strict=True) if part.weights
    }
    return PassReads(
        by_device, shape.weight_type, shape.n_expert, shape.n_expert_used, shape.n_embd
    )


def count_head_reads(
    target: ModelShape,
    head: ModelShape,
    settings: ContextSettings,
    devices: Sequence[Device],
    context: int = 0,
) -> PassReads:
    """Reads of one row of a head, which may borrow the target's output matrix."""
    if head.head_kind == "mtp":
        il = target.n_layer
        placed = placement.place_layers(target, settings, devices, {})
        layer = head.layers[il]
        cache = _kv_read_bytes(head, layer, settings, context)
        part = DeviceReads(
            layer.weights,
            layer.experts * head.n_expert_used / max(1, head.n_expert),
            kv_cache=cache,
            attention=cache * layer.queries_per_kv,
            layer_share=1 / max(1, il),
        )
        if not head.has_mtp_output:
            part.dense += target.output_matrix
        device = placed.backend_names[placed.layer_backends[il]]
        return PassReads(
            {device: part}, head.weight_type, head.n_expert, head.n_expert_used, head.n_embd
        )
    reads = count_reads(head, settings, devices, context)
    for part in reads.by_device.values():
        # The fixed time of a pass was measured for whole models; a head has few layers.
        part.layer_share *= head.n_layer / max(1, target.n_layer)
    if not head.output_matrix:
        reads.by_device[reads.devices[-1]].dense += target.output_matrix
    return reads


def _kv_read_bytes(
    shape: ModelShape, layer: LayerShape, settings: ContextSettings, context: int
) -> float:
    widths = (layer.n_embd_head_k, 0 if shape.is_mla else layer.n_embd_head_v)
    n_bytes = 0.0
    for kv_type, width in zip(llama_params.KV_TYPES[settings.kv_type], widths, strict=True):
        _, block, block_bytes = GGML_TYPES[kv_type]
        n_bytes += width * block_bytes / block
    cells = min(context, shape.n_swa) if layer.is_swa else context
    return layer.n_head_kv * cells * n_bytes


_REQUEST_BYTES = 5000
_ACTIVATION_BYTES = 4  # Of a number of a hidden state on the wire.


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
    ms *= moe_slowdown(reads.is_moe)
    # A round trip to each worker in the chain, with the activations of each token there and back.
    # The width is as that of the pass before; a change sends the graph again.
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
    weighted = sum(ms[name] * find_speed(reads, name, hardware).error for name in ms)
    return weighted / (sum(ms.values()) or 1.0)


def _device_ms(reads: PassReads, device: str, hardware: HardwareSpeed, width: int) -> float:
    """The fixed time scales with the width too, as in the measured curves of small models."""
    part, weight_type = reads.by_device[device], reads.weight_type
    speed = find_speed(reads, device, hardware)
    ms = part.layer_share * speed.fixed_ms + speed.read_ms(part.dense)
    ms *= speed.verify_cost(width, weight_type)
    # Attention is bound by compute on a CPU, by memory on a GPU.
    if speed.kind == "cpu":
        ms += _CPU_ATTENTION_SLOWDOWN * speed.read_ms(part.attention) * width
    else:
        ms += speed.read_ms(part.kv_cache) * speed.verify_cost(width, weight_type)
    if part.experts:  # a wider batch uses more of them, each for fewer tokens
        ratio = reads.experts_used_ratio(width)
        ms += speed.read_ms(part.experts) * ratio * speed.verify_cost(width / ratio, weight_type)
    return ms
