"""Estimated speed of a pair: the bytes that a pass reads on each device, and its time.

A pass takes a fixed time and the time to read its bytes; the speed-up by speculation
follows from the costs of passes and an acceptance rate (speedup_model.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import hypot, inf
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.fit import speedup_model
from localspec.fit.placement import LayerPlacement, Placements
from localspec.fit.shape import LayerShape, ModelShape
from localspec.fit.speedup_model import SpeculationCosts
from localspec.machine import gpu_catalog, llama_params
from localspec.machine.cpu_and_ram import read_cpu_name, typical_ram
from localspec.machine.device import HOST, Device
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import DRAFT_MAX, ContextSettings, LoadCommand

CurveKind = Literal["gpu", "metal", "cpu"]  # Selects the typical verify curve.
FloatRange = tuple[float, float]

_EXPERTS_SHARE, _ROUTING_MS = 0.8, 0.01
"""Experts are read in many small products: of the speed of other weights this share,
everywhere, and on a GPU a time for each layer.
"""
_FEW_BITS, _FEW_BITS_SHARE = re.compile("I?Q[123]|TQ"), 0.75
"""Of these types, which cost the most to unpack, the share of the reading speed of others.  These,
and `share` and `layer_ms` of gpus.yaml, are least squares of 250 published runs.
"""
TABLE_ERROR = 0.25  # Relative error of a one-token pass estimated from gpus.yaml.
CALIBRATED_ERROR = 0.08  # The same if passes were measured on this machine.
ASSUMED_ERROR = 0.5  # The same if the bandwidth is only typical of such computers.
# A measured speed applies to models up to this many times as large, or as small.
_SIZE_CLASS = 4
UNQUANTIZED_TYPES = ("F32", "F16", "BF16")
_CPU_VERIFY_CURVES: Mapping[bool, Mapping[int, float]] = {
    True: {1: 1.0, 2: 1.2, 4: 1.6, 5: 2.1, 8: 2.8, 17: 5.5},
    False: {1: 1.0, 2: 1.0, 4: 1.25, 8: 1.7, 17: 2.8},
}
"""Until one is measured, by whether the weights are quantised: these have a step from 4 to 5.  At 3
about 1.3, from targets with layers in RAM (MTP, 12 GB card).
"""
# Of that cost on Macs, where unpacking weights costs most of it.
_UNQUANTIZED_VERIFY = 0.13
# The cost relative to Vulkan: 0.28 and 0.15 a draft token on RX 7900 cards.
_ROCM_VERIFY = 2.0
_EXPERTS_POWER, _EXPERTS_STEP = 0.75, 0.5
"""Experts of a pass of several tokens cost the power of their number, and a step for
grouping the tokens: 1.7, 2.1, 2.6 and 3.2 passes at 2, 4, 8 and 16 tokens (gpt-oss-20b
on a GB10).
"""
# Relative to reading as many bytes of weights (3.0 and 6.9 GB/s).
_CPU_ATTENTION_SLOWDOWN = 2.3
# Copying activations from one device to the next: 30 to 60 µs.
_DEVICE_CROSSING_MS = 0.045
_REQUEST_BYTES = (
    5000  # Sent to another computer for each pass, beside 4 bytes per activation.
)
_HOST_MS = 0.8  # Of a round outside llama.cpp.
_SPEEDUP_ERRORS = {"measured": 0.10, "table": 0.20, "cpu": 0.35}
"""Relative error of a speed-up with a measured and a typical verify curve; on CPUs
those differ.
"""
_TYPICAL_BLOCK_ROWS = 6  # Rows of a block that are typically worth verifying.
_WORST_SPEEDUP = 0.97  # The engine pauses speculation that does not help.
_WORKLOADS = ("chat", "code", "writing", "documents")
# Of a rate measured with this pair: other texts are accepted otherwise.
_MEASURED_ERROR = 0.08
# For each workload, the share of an answer that repeats earlier text, which lookup can
# draft.
_COPIED_SHARES = ((0.0, 0.10), (0.05, 0.30), (0.0, 0.05), (0.05, 0.50))
_COPY_ACCEPTANCE = 0.85  # Acceptance rate of prompt lookup where the text repeats.
# At 1, relative: 0.75 became 0.62, 0.65 0.53 (Leviathan et al., T5).
_TEMPERATURE_LOSS = 0.18


class DeviceSpeed(Struct, frozen=True):
    bandwidth: float | None
    """Peak GB/s; None if unknown: then models on this device have no speed estimate."""
    efficiency: float = 0.75  # Share of the bandwidth reached.
    fixed_ms: float = 0.0  # Of a pass, whatever the model size.
    kind: CurveKind = "gpu"
    layer_ms: float = 0.0  # Of each layer.
    # A GPU's cost of a further token of a pass, in one-token passes.
    verify: float = 0.15
    verify_curve: Mapping[int, float] = field(default_factory=dict)
    """As measured; empty for the typical one."""
    error: float = TABLE_ERROR
    basis: str = ""  # The source of these numbers, shown to the user.
    measured: bool = False
    # Bytes of the largest model measured, and of the smallest.
    largest_measured: float = inf
    smallest_measured: float = 0.0

    def read_ms(self, n_bytes: float, weight_type: str = "") -> float:
        """Milliseconds to read `n_bytes`, without the fixed time.

        Requires a known bandwidth.
        """
        assert self.bandwidth is not None
        is_typical = self.kind == "cpu" or self.largest_measured < inf
        is_slow = not is_typical and _FEW_BITS.match(weight_type)
        factor = _FEW_BITS_SHARE if is_slow else 1.0
        return n_bytes / (factor * self.efficiency * self.bandwidth * 1e6)

    def verify_cost(self, width: float, weight_type: str) -> float:
        """Cost of a pass of `width` tokens, in one-token passes."""
        is_quantized = weight_type not in UNQUANTIZED_TYPES
        if self.verify_curve or self.kind == "cpu":
            curve = self.verify_curve or _CPU_VERIFY_CURVES[is_quantized]
            return speedup_model.interpolate_curve(curve, width)
        is_cheap = self.kind == "metal" and not is_quantized
        return 1 + self.verify * (_UNQUANTIZED_VERIFY if is_cheap else 1.0) * (
            width - 1
        )


UNKNOWN_SPEED = DeviceSpeed(None, error=ASSUMED_ERROR, basis="memory bandwidth unknown")
UNKNOWN_CPU_SPEED = replace(
    UNKNOWN_SPEED, fixed_ms=0.3, kind="cpu", basis="not measured yet"
)
TYPICAL_CPU_SPEED = replace(
    UNKNOWN_CPU_SPEED, bandwidth=60.0, basis="60 GB/s assumed, not measured yet"
)


def nominal_cpu(devices: Sequence[Device]) -> DeviceSpeed:
    """The CPU's speed until it is measured.

    Beside a GPU that shares its memory it reads that memory too: 200 to 240 of 400 GB/s
    on an M1 Max, 120 of 256 on a Ryzen AI Max.
    """
    for device in devices:
        if (
            device.unified
            and device.link is None
            and (spec := gpu_catalog.match_device(device))
        ):
            basis = f"half of {spec.bandwidth:g} GB/s assumed ({spec.name}), not measured yet"
            return replace(
                TYPICAL_CPU_SPEED, bandwidth=spec.bandwidth, efficiency=0.5, basis=basis
            )
    kind, bandwidth = typical_ram(read_cpu_name())
    basis = f"{bandwidth:g} GB/s assumed ({kind}), not measured yet (localspec doctor --cpu)"
    return replace(TYPICAL_CPU_SPEED, bandwidth=bandwidth, basis=basis)


class HardwareSpeed(Struct, frozen=True):
    """Speeds of all devices of a machine."""

    devices: tuple[Device, ...]  # Devices that layers can be offloaded to.
    nominal_speeds: Mapping[str, DeviceSpeed]  # By device name; the CPU under HOST.
    measured_speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    """By device and weight type; the type "" applies to types not measured."""
    acceptance: Mapping[tuple[str, ...], Mapping[str, float]] = field(
        default_factory=dict
    )
    """Rates that drafts reached here, by the paths of the pair; by `greedy` and
    `coupled`.
    """

    def find_speed(
        self,
        device: str,
        weight_type: str,
        n_bytes: float = 0,
        model_bytes: float = inf,
    ) -> DeviceSpeed:
        """The speed for a model that reads `n_bytes` per token here, `model_bytes`
        everywhere.

        What was measured applies to models of the size class of the largest and of the smallest
        one.  Others take the table's speed; larger ones at least, smaller ones at most as long as
        the last of the class, so that those of a list are comparable.
        """
        found = (self.measured_speeds.get((device, name)) for name in (weight_type, ""))
        speed = next(filter(None, found), None)
        nominal = self.nominal_speeds.get(device, UNKNOWN_SPEED)
        if speed is None:
            return nominal
        limit = speed.smallest_measured / _SIZE_CLASS
        is_small = model_bytes < limit
        if not is_small and n_bytes <= (limit := _SIZE_CLASS * speed.largest_measured):
            return speed
        basis = f"{nominal.basis} ({speed.basis}, far {'larger' if is_small else 'smaller'})"
        borrowed = replace(speed, error=ASSUMED_ERROR, measured=False, basis=basis)
        if nominal.bandwidth is None:
            return borrowed
        fixed_ms = speed.fixed_ms + speed.read_ms(limit) - nominal.read_ms(limit)
        if is_small:
            return (
                borrowed
                if fixed_ms < nominal.fixed_ms
                else replace(nominal, basis=basis)
            )
        return replace(nominal, fixed_ms=max(nominal.fixed_ms, fixed_ms), basis=basis)


def from_devices(
    devices: Sequence[Device], cpu: DeviceSpeed = UNKNOWN_CPU_SPEED
) -> HardwareSpeed:
    """Nominal speeds from gpus.yaml; without devices, the CPU computes everything."""
    speeds = {device.name: _nominal_speed(device) for device in devices}
    return HardwareSpeed(tuple(devices), speeds | {HOST: cpu})


def _nominal_speed(device: Device) -> DeviceSpeed:
    if device.link and device.backend == HOST:
        return TYPICAL_CPU_SPEED
    kind: CurveKind = "metal" if device.backend in ("Metal", "MTL") else "gpu"
    spec = gpu_catalog.match_device(device)
    if spec is None:
        return replace(UNKNOWN_SPEED, kind=kind)
    caveat = ", unconfirmed" if "bandwidth" in spec.unconfirmed else ""
    basis = f"{spec.bandwidth:g} GB/s{caveat} ({spec.name})"
    verify = spec.verify * (_ROCM_VERIFY if device.backend == "ROCm" else 1.0)
    own = spec.bandwidth, spec.share, 0.0, kind, spec.layer_ms, verify
    return DeviceSpeed(*own, basis=basis)


class DeviceReads(Struct):
    """Bytes read for one token on one device."""

    dense: float = 0.0  # Weights that every token reads.
    # Of the experts one token uses, as many as take the same time.
    experts: float = 0.0
    # The KV cache in use, and recurrent states, read and written.
    kv_cache: float = 0.0
    # The same, counted once for each attention head that reads it.
    attention: float = 0.0
    n_layers: int = 0
    n_with_experts: int = 0

    @property
    def weights(self) -> float:
        return self.dense + self.experts


class PassReads(Struct, frozen=True):
    """What one token of a model reads."""

    shape: ModelShape
    by_device: Mapping[str, DeviceReads]  # By device name; devices in use only.
    n_crossings: int = 0  # Between devices.
    n_layers: int = 1  # Of the whole model, or of a head's target.

    @property
    def weights(self) -> float:
        return sum(part.weights for part in self.by_device.values())

    def experts_used_ratio(self, width: int) -> float:
        """Distinct experts used by a batch of `width` tokens, relative to one token."""
        share = self.shape.n_expert_used / self.shape.n_expert
        return float((1 - (1 - share) ** width) / share)


def count_reads(
    shape: ModelShape,
    settings: ContextSettings,
    placed: LayerPlacement,
    context: int = 0,
    target: ModelShape | None = None,
) -> PassReads:
    """Reads of one token with `context` tokens in the cache.

    `target`: of a head, which may borrow its output matrix.
    """
    reads = [DeviceReads() for _ in placed.backend_names]
    share = shape.n_expert_used / max(1, shape.n_expert) / _EXPERTS_SHARE
    states, n_crossings = 8 * (shape.n_embd_r + shape.n_embd_s), 0
    for il in shape.own_layers:
        layer, home = shape.layers[il], placed.layer_backends[il]
        part = reads[home]
        part.dense += layer.weights
        expert_home = placed.expert_backends[il]
        reads[expert_home].experts += layer.experts * share
        reads[expert_home].n_with_experts += layer.experts > 0
        n_crossings += 2 * (layer.experts > 0 and expert_home != home)
        part.n_layers += 1
        n_bytes = (
            _kv_read_bytes(shape, layer, settings, context) if layer.has_kv else 0.0
        )
        state_bytes = states * layer.is_recurrent
        part.kv_cache += n_bytes + state_bytes
        part.attention += n_bytes * layer.queries_per_kv + state_bytes
    output = reads[placed.output_backend]
    if not shape.has_target_weights:
        output.dense += shape.output_reads
    borrows = not (
        shape.has_mtp_output if shape.has_target_weights else shape.output_matrix
    )
    if target and borrows:
        output.dense += target.output_matrix
    pairs = zip(placed.backend_names, reads, strict=True)
    used = {name: part for name, part in pairs if part.weights}
    homes = {placed.layer_backends[il] for il in shape.own_layers} | {
        placed.output_backend
    }
    return PassReads(
        shape, used, n_crossings + len(homes) - 1, (target or shape).n_layer
    )


def _kv_read_bytes(
    shape: ModelShape, layer: LayerShape, settings: ContextSettings, context: int
) -> float:
    widths = (layer.n_embd_head_k, 0 if shape.is_mla else layer.n_embd_head_v)
    n_bytes = 0.0
    for kv_type, width in zip(
        llama_params.KV_TYPES[settings.kv_type], widths, strict=True
    ):
        _, block, block_bytes = GGML_TYPES[kv_type]
        n_bytes += width * block_bytes / block
    cells = min(context, shape.n_swa) if layer.is_swa else context
    return layer.n_head_kv * cells * n_bytes


def find_speeds(reads: PassReads, hardware: HardwareSpeed) -> dict[str, DeviceSpeed]:
    """Of the devices that a pass uses."""
    # a head is a part of its target
    size = inf if reads.shape.head_kind else reads.weights
    return {
        name: hardware.find_speed(name, reads.shape.weight_type, part.weights, size)
        for name, part in reads.by_device.items()
    }


def estimate_ms(reads: PassReads, hardware: HardwareSpeed, width: int = 1) -> float:
    """Milliseconds of a pass of `width` tokens.  Requires known bandwidths."""
    shape, speeds = reads.shape, find_speeds(reads, hardware)
    ms = sum(_device_ms(reads, name, speed, width) for name, speed in speeds.items())
    ms += _DEVICE_CROSSING_MS * reads.n_crossings
    # A round trip to each remote device of the chain, with the activations of each token
    # there and back. The width is as that of the pass before; a change sends the graph
    # again.
    for device in hardware.devices:
        link = device.link
        if link is not None and device.name in speeds:
            n_bytes = _REQUEST_BYTES + 2 * 4 * width * shape.n_embd
            ms += link.round_trip_ms + 1e3 * n_bytes / link.bytes_per_second
    return ms


def _device_ms(reads: PassReads, device: str, speed: DeviceSpeed, width: int) -> float:
    """The fixed time was measured for whole models, as curves are; a head has few
    layers.
    """
    part, weight_type = reads.by_device[device], reads.shape.weight_type
    verify_cost = speed.verify_cost(width, weight_type)
    fixed_ms = part.n_layers * (
        speed.fixed_ms / max(1, reads.n_layers) + speed.layer_ms
    )
    ms = fixed_ms * (verify_cost if speed.verify_curve else 1.0)
    ms += speed.read_ms(part.dense, weight_type) * verify_cost
    ms += part.n_with_experts * (0.0 if speed.kind == "cpu" else _ROUTING_MS)
    # Attention is bound by compute on a CPU, by memory on a GPU.
    if speed.kind == "cpu":
        ms += _CPU_ATTENTION_SLOWDOWN * speed.read_ms(part.attention) * width
    else:
        ms += speed.read_ms(part.kv_cache) * verify_cost
    if part.experts:  # a wider batch uses more of them, each for fewer tokens
        ratio = reads.experts_used_ratio(width)
        used = ratio**_EXPERTS_POWER + _EXPERTS_STEP * (width > 1)
        cost = used * speed.verify_cost(width / ratio, weight_type)
        ms += speed.read_ms(part.experts, weight_type) * cost
    return ms


class UseCase(Struct, frozen=True):
    """The kind of text, the temperature and the context that a speed applies to."""

    workload: str = "chat"
    temperature: float = 0.8
    context: int = 1024  # Tokens in the context while answering.


class WorkloadSpeed(Struct, frozen=True):
    speedup: FloatRange
    tokens_per_second: FloatRange


class SpeedEstimate(Struct, frozen=True):
    """Ranges in tokens per second; None if unknown, with the reason in `explanation`."""

    plain: FloatRange | None = None
    speculative: FloatRange | None = None
    by_workload: Mapping[str, WorkloadSpeed] = field(default_factory=dict)
    explanation: str = ""
    calibrated: bool = False  # Based on passes measured on this machine.
    costs: SpeculationCosts | None = None
    t1_ms: float | None = None
    reads: tuple[PassReads, PassReads | None] | None = None  # Of target and draft.


def estimate_speed(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    hardware: HardwareSpeed,
    placements: Placements,
    use: UseCase | None = None,
) -> SpeedEstimate:
    """With these settings, from the speeds of the devices."""
    use = use or UseCase()
    target_placement, draft_placement = placements
    reads = count_reads(target, load.target_settings, target_placement, use.context)
    speeds = find_speeds(reads, hardware)
    draft_reads = None
    known = [*speeds.items()]
    if draft is not None and draft_placement is not None:
        head_of = target if draft.head_kind else None
        draft_reads = count_reads(
            draft, load.draft_settings, draft_placement, use.context, head_of
        )
        known += find_speeds(draft_reads, hardware).items()
    for name, speed in known:
        if speed.bandwidth is None:
            reason = f"{name}: {speed.basis}"
            return SpeedEstimate(explanation=reason, reads=(reads, draft_reads))
    t1 = estimate_ms(reads, hardware)
    parts = {name: _device_ms(reads, name, speed, 1) for name, speed in speeds.items()}
    error = sum(parts[name] * speeds[name].error for name in parts) / (
        sum(parts.values()) or 1.0
    )
    plain = 1e3 / t1 * (1 - error), 1e3 / t1 * (1 + error)
    costs = _estimate_costs(load, (reads, draft_reads), draft, hardware)
    is_measured = all(speed.measured for speed in speeds.values())
    by_workload: dict[str, WorkloadSpeed] = {}
    if target.has_recurrent_state and not target.can_rollback:
        basis, expected = (
            "no speculation: its recurrent state cannot be rolled back",
            plain,
        )
    else:
        kind = (
            "cpu" if any(speed.kind == "cpu" for speed in speeds.values()) else "table"
        )
        has_curves = is_measured and all(
            speed.verify_curve for speed in speeds.values()
        )
        speedup_error = _SPEEDUP_ERRORS["measured" if has_curves else kind]
        basis, speedups = _expect_speedups(load, draft, hardware, use, costs)
        for name, (low, high) in speedups.items():
            by_workload[name] = _workload_speed(t1, error, low, high, speedup_error)
        expected = by_workload.get(use.workload, by_workload["chat"]).tokens_per_second
    basis = f"{', '.join(f'{name}: {each.basis}' for name, each in speeds.items())}; {basis}"
    return SpeedEstimate(
        plain=plain,
        speculative=expected,
        by_workload=by_workload,
        explanation=basis,
        calibrated=is_measured,
        costs=costs,
        t1_ms=t1,
        reads=(reads, draft_reads),
    )


def _estimate_costs(
    load: LoadCommand,
    reads: tuple[PassReads, PassReads | None],
    draft: ModelShape | None,
    hardware: HardwareSpeed,
) -> SpeculationCosts:
    """`reads`: of target and draft."""
    target_reads, draft_reads = reads
    t1 = estimate_ms(target_reads, hardware)
    host_ms, draft_ms, max_draft = _HOST_MS, 0.0, load.draft_max
    if draft and draft_reads and draft.head_block:  # one pass for all draft tokens
        max_draft = min(max_draft, max(1, draft.head_block - 1))
        host_ms += estimate_ms(
            draft_reads, hardware, min(max_draft, _TYPICAL_BLOCK_ROWS)
        )
    elif draft_reads:
        draft_ms = estimate_ms(draft_reads, hardware)
    widths = range(1, load.draft_max + 2)
    curve = {width: estimate_ms(target_reads, hardware, width) / t1 for width in widths}
    return SpeculationCosts(
        draft_ms / t1, curve, host_ms / t1, min(max_draft, DRAFT_MAX)
    )


def _expect_speedups(
    load: LoadCommand,
    draft: ModelShape | None,
    hardware: HardwareSpeed,
    use: UseCase,
    costs: SpeculationCosts,
) -> tuple[str, dict[str, tuple[FloatRange, FloatRange]]]:
    """What they are based on; by workload the lowest and the highest, each with the
    share of the text that is drafted.
    """
    if draft is None:
        basis = "typical gains of prompt lookup"
        copied = max(1.0, costs.best_speedup(_COPY_ACCEPTANCE))
        ends = [
            [
                (1 / (1 - share + share / copied), share * (copied > 1))
                for share in shares
            ]
            for shares in _COPIED_SHARES
        ]
    else:
        rates, basis = _find_rates(load, draft, hardware, use)
        share = float(costs.max_draft > 0)
        ends = [[(costs.best_speedup(rate), share) for rate in each] for each in rates]
    return basis, {
        name: (low, high) for name, (low, high) in zip(_WORKLOADS, ends, strict=True)
    }


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
        rates = (
            max(0.0, measured - _MEASURED_ERROR),
            min(1.0, measured + _MEASURED_ERROR),
        )
        basis = f"acceptance rate of {measured:.2f} measured with this pair"
        return [rates] * len(_WORKLOADS), basis
    kind = draft_kinds.kinds()[draft.head_kind or "model"]
    basis = f"typical acceptance rate for {use.workload}"
    if kind.is_head:
        basis = f"acceptance rate as reported for {kind.title} heads ({use.workload})"
    typical = kind.typical_acceptance
    assert typical is not None
    ranges = [getattr(typical, workload) for workload in _WORKLOADS]
    return [(low * factor, high * factor) for low, high in ranges], basis


def _workload_speed(
    t1_ms: float,
    error: float,
    lowest: FloatRange,
    highest: FloatRange,
    speedup_error: float,
) -> WorkloadSpeed:
    """`error`: relative, of `t1_ms`; `lowest` and `highest`: a speed-up, and the share
    drafted.

    Never much slower than plain decoding, as the engine pauses speculation that does not help.  No
    faster either if the middle of the speed-up is a loss: then an error does not make it a gain.
    """
    (low, low_share), (high, high_share) = lowest, highest
    if low + high < 2:
        high, high_share = min(high, 1.0), 0.0
    tok_s = 1e3 / t1_ms
    low_error, high_error = speedup_error * low_share, speedup_error * high_share
    slowest = tok_s * max(
        low * (1 - hypot(error, low_error)), (1 - error) * _WORST_SPEEDUP
    )
    fastest = tok_s * max(high * (1 + hypot(error, high_error)), 1 + error)
    speedup = (
        max(low * (1 - low_error), _WORST_SPEEDUP),
        max(high * (1 + high_error), 1.0),
    )
    return WorkloadSpeed(speedup, (slowest, fastest))
