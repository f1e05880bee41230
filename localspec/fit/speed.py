"""Estimated speed of a pair: the bytes that a pass reads on each device, and its time.

A pass takes a fixed time and the time to read its bytes; the speed-up by speculation follows from
the costs of passes and an acceptance rate (speedup_model.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import hypot, inf
from typing import Literal

from localspec.fit import placement, speedup_model
from localspec.fit.shape import LayerShape, ModelShape
from localspec.fit.speedup_model import SpeculationCosts
from localspec.lazy_dataclass import dataclass
from localspec.machine import gpu_catalog, llama_params
from localspec.machine.device import HOST, Device
from localspec.machine.rpc.preflight import WorkerReport
from localspec.models import draft_heads
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import DRAFT_MAX, ContextSettings, LoadCommand

CurveKind = Literal["gpu", "metal", "cpu"]  # Selects the typical verify curve.
FloatRange = tuple[float, float]

_FIXED_MS, _CPU_FIXED_MS = 1.5, 0.3
"""Fixed time of a pass, whatever the model size: kernel launches."""
_CUDA_FIXED_MS, _CUDA_EFFICIENCY = 0.7, 0.71
"""Least squares on 70 published runs of dense Q4_K models.  Other backends: 1.66 ms with 0.78 (RX
7900 XT, 38 models) and 1.67 ms with 0.84 (M4 Pro, 22 models)."""
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
_MOE_SLOWDOWN = 1.36
"""Mixtures of experts take longer than their bytes suggest: 206 and 96 tok/s estimated, 152 and 71
measured (30B with 3B active, RX 7900 XT and M4 Pro).  Not gpt-oss, except on Macs: 280 tok/s on an
RTX 4090, 84 on an RTX 3060 and on a GB10."""
_CPU_ATTENTION_SLOWDOWN = 2.3
"""Attention on a CPU, relative to reading as many bytes of weights (3.0 and 6.9 GB/s, 1 thread)."""
_DEVICE_CROSSING_MS = 0.045  # Copying activations from one device to the next: 30 to 60 µs.
_REQUEST_BYTES = 5000  # Sent to a worker for each pass, beside 4 bytes per activation.

_HOST_MS, _HOST_GREEDY_MS = 0.8, 0.4
"""Time of a drafting round outside llama.cpp, sampled and greedy (docs/benchmarks.md)."""
_SPEEDUP_ERRORS = {"measured": 0.10, "table": 0.20, "cpu": 0.35}
"""Relative error of a speed-up with a measured and a typical verify curve; on CPUs those differ."""
_TYPICAL_BLOCK_ROWS = 6  # Rows of a block that are typically worth verifying.
_WORST_SPEEDUP = 0.97
"""Lower limit: the engine pauses speculation after a few rounds if it does not help."""
_WORKLOADS = ("chat", "code", "writing", "documents")
_TYPICAL_RATES: dict[str, tuple[FloatRange, ...]] = {
    "": ((0.50, 0.75), (0.65, 0.92), (0.40, 0.65), (0.55, 0.85)),
    "eagle3": ((0.50, 0.75), (0.62, 0.88), (0.40, 0.65), (0.55, 0.82)),
    "mtp": ((0.58, 0.85), (0.68, 0.93), (0.48, 0.75), (0.60, 0.88)),
    "dflash": ((0.40, 0.75), (0.60, 0.90), (0.25, 0.60), (0.45, 0.82)),
    "dspark": ((0.50, 0.82), (0.62, 0.93), (0.30, 0.66), (0.52, 0.85)),
}
"""Acceptance rates at temperature 0 by kind of head, empty for a draft model of the target's
family: for each workload, from a poor to a good match.

Draft models: reports range from 0.4 (prose) to 0.95 (code).  Heads: upper ends are from their
authors: DSpark's paper, table 1, temperature 1, 7 draft tokens (EAGLE-3, DFlash and DSpark emit
2.3-2.6, 2.8-3.1 and 3.3-3.6 tokens a pass in chats, 3.7-4.2, 4.2-4.7 and 4.9-5.4 for code);
vLLM #20780; DeepSeek-V3 (0.85 to 0.90 for MTP).  Lower ends are from users: MTP 0.48 to 0.93,
EAGLE-3 0.55 with gpt-oss, block heads 1.3 tokens a pass for prose.
"""
_MEASURED_ERROR = 0.08  # Of a rate measured with this pair: other texts are accepted otherwise.
_COPIED_SHARES = ((0.0, 0.10), (0.05, 0.30), (0.0, 0.05), (0.05, 0.50))
"""For each workload, the share of an answer that repeats earlier text, which lookup can draft."""
_COPY_ACCEPTANCE = 0.85  # Acceptance rate of prompt lookup where the text repeats.
_TEMPERATURE_LOSS = 0.18
"""Relative loss at temperature 1: 0.75 became 0.62, 0.65 became 0.53 (Leviathan et al., T5)."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    bandwidth: float | None
    """Peak GB/s; None if unknown: then models on this device have no speed estimate."""
    efficiency: float = 0.75  # Share of the bandwidth reached: 0.68 to 0.84 on the GPUs examined.
    fixed_ms: float = _FIXED_MS
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
        typical = _TYPICAL_VERIFY_CURVES[self.kind, weight_type not in UNQUANTIZED_TYPES]
        return speedup_model.interpolate_curve(self.verify_curve or typical, width)


UNKNOWN_SPEED = DeviceSpeed(None, error=ASSUMED_ERROR, basis="memory bandwidth unknown")
UNKNOWN_CPU_SPEED = DeviceSpeed(
    None, 0.7, _CPU_FIXED_MS, "cpu", error=ASSUMED_ERROR, basis="not measured yet"
)
TYPICAL_CPU_SPEED = replace(
    UNKNOWN_CPU_SPEED,
    bandwidth=50.0,
    efficiency=0.6,
    basis="50 GB/s assumed (dual-channel DDR4), not measured yet",
)
"""A rough assumption; show it with its basis."""


def nominal_cpu(devices: Sequence[Device]) -> DeviceSpeed:
    """The CPU's speed until it is measured.

    Beside a GPU that shares its memory it reads that memory too: 200 to 240 of 400 GB/s on an M1
    Max, 120 of 256 on a Ryzen AI Max.
    """
    for device in devices:
        if device.unified and not device.worker and (spec := gpu_catalog.match_device(device)):
            basis = f"half of {spec.bandwidth:g} GB/s assumed ({spec.name}), not measured yet"
            return replace(TYPICAL_CPU_SPEED, bandwidth=spec.bandwidth, efficiency=0.5, basis=basis)
    return TYPICAL_CPU_SPEED


@dataclass(frozen=True, slots=True)
class HardwareSpeed:
    """Speeds of all devices of a machine."""

    devices: tuple[Device, ...]  # Devices that layers can be offloaded to.
    nominal_speeds: Mapping[str, DeviceSpeed]  # By device name; the CPU under HOST.
    lines: Mapping[str, WorkerReport] = field(default_factory=dict)  # By name of a worker's device.
    measured_speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    """By device and weight type; the type "" applies to types not measured."""
    acceptance: Mapping[tuple[str, ...], Mapping[str, float]] = field(default_factory=dict)
    """Rates that drafts reached here, by the paths of the pair; by `greedy` and `coupled`."""

    def find_speed(self, device: str, weight_type: str, n_bytes: float = 0) -> DeviceSpeed:
        """The speed for a model with this weight type that reads `n_bytes` per token here.

        Once a device was measured, all models are estimated from its measurements: those of a list
        are comparable.
        """
        by_type = self.measured_speeds
        speed = by_type.get((device, weight_type)) or by_type.get((device, ""))
        if speed is None:
            return self.nominal_speeds.get(device, UNKNOWN_SPEED)
        if n_bytes <= _MAX_EXTRAPOLATION * speed.largest_measured:
            return speed
        basis = f"{speed.basis}, far smaller"
        return replace(speed, error=ASSUMED_ERROR, measured=False, basis=basis)


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
        return replace(UNKNOWN_SPEED, kind=kind)
    caveat = ", unconfirmed" if "bandwidth" in spec.unconfirmed else ""
    basis = f"{spec.bandwidth:g} GB/s{caveat} ({spec.name})"
    speed = DeviceSpeed(spec.bandwidth, kind=kind, basis=basis)
    if device.backend == "CUDA":
        speed = replace(speed, fixed_ms=_CUDA_FIXED_MS, efficiency=_CUDA_EFFICIENCY)
    return speed


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

    shape: ModelShape
    by_device: Mapping[str, DeviceReads]  # By device name; devices in use only.

    @property
    def weights(self) -> float:
        return sum(part.weights for part in self.by_device.values())

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.by_device)

    def experts_used_ratio(self, width: int) -> float:
        """Distinct experts used by a batch of `width` tokens, relative to one token."""
        share = self.shape.n_expert_used / self.shape.n_expert
        return float((1 - (1 - share) ** width) / share)


def count_reads(
    shape: ModelShape,
    settings: ContextSettings,
    devices: Sequence[Device],
    context: int = 0,
    target: ModelShape | None = None,
) -> PassReads:
    """Reads of one token with `context` tokens in the cache, layers placed as by llama.cpp.

    `target`: of a head, which may borrow its output matrix.
    """
    placed = placement.place_layers(shape, settings, devices, {})
    reads = [DeviceReads() for _ in placed.backend_names]
    share = shape.n_expert_used / max(1, shape.n_expert)
    states = 8 * (shape.n_embd_r + shape.n_embd_s)
    for il in shape.own_layers:
        layer, home = shape.layers[il], placed.layer_backends[il]
        part = reads[home]
        part.dense += layer.weights
        expert_home = placed.cpu_backend if placed.experts_on_cpu else home
        reads[expert_home].experts += layer.experts * share
        # The fixed time of a pass was measured for whole models; a head has few layers.
        part.layer_share += 1 / max(1, (target or shape).n_layer)
        n_bytes = _kv_read_bytes(shape, layer, settings, context) if layer.has_kv else 0.0
        state_bytes = states * layer.is_recurrent
        part.kv_cache += n_bytes + state_bytes
        part.attention += n_bytes * layer.queries_per_kv + state_bytes
    output = reads[placed.output_backend]
    if shape.head_kind != "mtp":
        output.dense += shape.output_reads
    borrows = not (shape.has_mtp_output if shape.head_kind == "mtp" else shape.output_matrix)
    if target and borrows:
        output.dense += target.output_matrix
    pairs = zip(placed.backend_names, reads, strict=True)
    return PassReads(shape, {name: part for name, part in pairs if part.weights})


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


def find_speeds(reads: PassReads, hardware: HardwareSpeed) -> dict[str, DeviceSpeed]:
    """Of the devices that a pass uses."""
    return {
        name: hardware.find_speed(name, reads.shape.weight_type, part.weights)
        for name, part in reads.by_device.items()
    }


def estimate_ms(reads: PassReads, hardware: HardwareSpeed, width: int = 1) -> float:
    """Milliseconds of a pass of `width` tokens.  Requires known bandwidths."""
    speeds = find_speeds(reads, hardware)
    shape = reads.shape
    ms = sum(
        _device_ms(reads, name, speed, width)
        * moe_slowdown(shape.is_moe, shape.architecture, speed.kind)
        for name, speed in speeds.items()
    )
    ms += _DEVICE_CROSSING_MS * (len(speeds) - 1)
    # A round trip to each worker in the chain, with the activations of each token there and back.
    # The width is as that of the pass before; a change sends the graph again.
    for line in (hardware.lines[name] for name in speeds if name in hardware.lines):
        n_bytes = _REQUEST_BYTES + 2 * 4 * width * shape.n_embd
        ms += line.round_trip_ms + 1e3 * n_bytes / line.bytes_per_second
    return ms


def moe_slowdown(is_moe: bool, architecture: str, kind: CurveKind) -> float:
    """Factor on the time estimated from bytes."""
    is_slower = is_moe and (architecture != "gpt-oss" or kind == "metal")
    return _MOE_SLOWDOWN if is_slower else 1.0


def _device_ms(reads: PassReads, device: str, speed: DeviceSpeed, width: int) -> float:
    """The fixed time scales with the width too, as in the measured curves of small models."""
    part, weight_type = reads.by_device[device], reads.shape.weight_type
    verify_cost = speed.verify_cost(width, weight_type)
    ms = (part.layer_share * speed.fixed_ms + speed.read_ms(part.dense)) * verify_cost
    # Attention is bound by compute on a CPU, by memory on a GPU.
    if speed.kind == "cpu":
        ms += _CPU_ATTENTION_SLOWDOWN * speed.read_ms(part.attention) * width
    else:
        ms += speed.read_ms(part.kv_cache) * verify_cost
    if part.experts:  # a wider batch uses more of them, each for fewer tokens
        ratio = reads.experts_used_ratio(width)
        ms += speed.read_ms(part.experts) * ratio * speed.verify_cost(width / ratio, weight_type)
    return ms


def estimate_verify_curve(
    reads: PassReads, hardware: HardwareSpeed, widest: int
) -> dict[int, float]:
    """The verify curve v: pass time by width, in one-token passes."""
    t1 = estimate_ms(reads, hardware)
    return {width: estimate_ms(reads, hardware, width) / t1 for width in range(1, widest + 1)}


@dataclass(frozen=True, slots=True)
class UseCase:
    """The kind of text, the temperature and the context that a speed applies to."""

    workload: str = "chat"
    temperature: float = 0.8
    context: int = 1024  # Tokens in the context while answering.


@dataclass(frozen=True, slots=True)
class WorkloadSpeed:
    """Effect of speculation on one kind of text."""

    speedup: FloatRange
    tokens_per_second: FloatRange


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """Ranges in tokens per second; None if unknown, with the reason in `explanation`."""

    plain: FloatRange | None = None
    speculative: FloatRange | None = None
    by_workload: Mapping[str, WorkloadSpeed] = field(default_factory=dict)
    explanation: str = ""
    calibrated: bool = False  # Based on passes measured on this machine.
    costs: SpeculationCosts | None = None
    t1_ms: float | None = None


def estimate_speed(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    hardware: HardwareSpeed,
    use: UseCase | None = None,
) -> SpeedEstimate:
    """With these settings, from the speeds of the devices."""
    use, devices = use or UseCase(), hardware.devices
    reads = count_reads(target, load.target_settings, devices, use.context)
    speeds, draft_reads = find_speeds(reads, hardware), None
    known = [speeds]
    if draft is not None:
        head_of = target if draft.head_kind else None
        draft_reads = count_reads(draft, load.draft_settings, devices, use.context, head_of)
        known.append(find_speeds(draft_reads, hardware))
    for name, speed in ((name, one[name]) for one in known for name in one):
        if speed.bandwidth is None:
            return SpeedEstimate(explanation=f"{name}: {speed.basis}")
    t1 = estimate_ms(reads, hardware)
    parts = {name: _device_ms(reads, name, speed, 1) for name, speed in speeds.items()}
    error = sum(parts[name] * speeds[name].error for name in parts) / (sum(parts.values()) or 1.0)
    plain = 1e3 / t1 * (1 - error), 1e3 / t1 * (1 + error)
    costs = _estimate_costs(load, (reads, draft_reads), draft, hardware, use)
    is_measured = all(speed.measured for speed in speeds.values())
    by_workload: dict[str, WorkloadSpeed] = {}
    if target.has_recurrent_state and not target.can_rollback:
        basis, expected = "no speculation: its recurrent state cannot be rolled back", plain
    else:
        kind = "cpu" if any(speed.kind == "cpu" for speed in speeds.values()) else "table"
        has_curves = is_measured and all(speed.verify_curve for speed in speeds.values())
        speedup_error = _SPEEDUP_ERRORS["measured" if has_curves else kind]
        basis, speedups = _expect_speedups(load, draft, hardware, use, costs)
        for name, (low, high) in speedups.items():
            by_workload[name] = _workload_speed(t1, error, low, high, speedup_error)
        expected = by_workload.get(use.workload, by_workload["chat"]).tokens_per_second
    basis = f"{', '.join(f'{name}: {each.basis}' for name, each in speeds.items())}; {basis}"
    return SpeedEstimate(plain, expected, by_workload, basis, is_measured, costs, t1)


def _estimate_costs(
    load: LoadCommand,
    reads: tuple[PassReads, PassReads | None],
    draft: ModelShape | None,
    hardware: HardwareSpeed,
    use: UseCase,
) -> SpeculationCosts:
    """`reads`: of target and draft."""
    target_reads, draft_reads = reads
    t1 = estimate_ms(target_reads, hardware)
    host_ms = _HOST_MS if use.temperature > 0 else _HOST_GREEDY_MS
    draft_ms, max_draft = 0.0, load.draft_max
    if draft and draft_reads and draft.head_block:  # one pass for all draft tokens
        max_draft = min(max_draft, max(1, draft.head_block - 1))
        host_ms += estimate_ms(draft_reads, hardware, min(max_draft, _TYPICAL_BLOCK_ROWS))
    elif draft_reads:
        draft_ms = estimate_ms(draft_reads, hardware)
    curve = estimate_verify_curve(target_reads, hardware, load.draft_max + 1)
    return SpeculationCosts(draft_ms / t1, curve, host_ms / t1, min(max_draft, DRAFT_MAX))


def _expect_speedups(
    load: LoadCommand,
    draft: ModelShape | None,
    hardware: HardwareSpeed,
    use: UseCase,
    costs: SpeculationCosts,
) -> tuple[str, dict[str, tuple[FloatRange, FloatRange]]]:
    """What they are based on; by workload the lowest and the highest, each with the share of the
    text that is drafted.
    """
    if draft is None:
        basis = "typical gains of prompt lookup"
        copied = max(1.0, costs.best_speedup(_COPY_ACCEPTANCE))
        ends = [
            [(1 / (1 - share + share / copied), share * (copied > 1)) for share in shares]
            for shares in _COPIED_SHARES
        ]
    else:
        rates, basis = _find_rates(load, draft, hardware, use)
        share = float(costs.max_draft > 0)
        ends = [[(costs.best_speedup(rate), share) for rate in each] for each in rates]
    return basis, {name: (low, high) for name, (low, high) in zip(_WORKLOADS, ends, strict=True)}


def _find_rates(
    load: LoadCommand, draft: ModelShape, hardware: HardwareSpeed, use: UseCase
) -> tuple[Sequence[FloatRange], str]:
    """Acceptance rates by workload, and what they are based on."""
    here = hardware.acceptance.get((load.target, load.draft or ""), {})
    factor = 1 - _TEMPERATURE_LOSS * min(max(use.temperature, 0.0), 1.0)
    measured = here.get("coupled") if use.temperature > 0 else None
    if measured is None and "greedy" in here:
        measured = here["greedy"] * factor
    if measured is not None:
        rates = max(0.0, measured - _MEASURED_ERROR), min(1.0, measured + _MEASURED_ERROR)
        basis = f"acceptance rate of {measured:.2f} measured with this pair"
        return [rates] * len(_WORKLOADS), basis
    basis = f"typical acceptance rate for {use.workload}"
    if kind := draft.head_kind:
        title = draft_heads.KIND_TITLES[kind]
        basis = f"acceptance rate as reported for {title} heads ({use.workload})"
    return [(low * factor, high * factor) for low, high in _TYPICAL_RATES[kind]], basis


def _workload_speed(
    t1_ms: float, error: float, lowest: FloatRange, highest: FloatRange, speedup_error: float
) -> WorkloadSpeed:
    """`error`: relative, of `t1_ms`; `lowest` and `highest`: a speed-up, and the share drafted.

    Never much slower than plain decoding, as the engine pauses speculation that does not help.
    """
    (low, low_share), (high, high_share) = lowest, highest
    tok_s, low_error, high_error = (
        1e3 / t1_ms,
        speedup_error * low_share,
        speedup_error * high_share,
    )
    slowest = tok_s * max(low * (1 - hypot(error, low_error)), (1 - error) * _WORST_SPEEDUP)
    fastest = tok_s * max(high * (1 + hypot(error, high_error)), 1 + error)
    speedup = max(low * (1 - low_error), _WORST_SPEEDUP), max(high * (1 + high_error), 1.0)
    return WorkloadSpeed(speedup, (slowest, fastest))
