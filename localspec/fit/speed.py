"""Estimated speed of a pair: the bytes that a pass reads on each device, and its time.

A pass takes a fixed time and the time to read its bytes; the speed-up by speculation
follows from the costs of passes and an acceptance rate (speedup_model.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import hypot, inf
from typing import Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.fit import speedup_model
from localspec.fit.placement import LayerPlacement, Placements
from localspec.fit.shape import LayerShape, ModelShape
from localspec.fit.speedup_model import SpeculationCosts
from localspec.machine import gpu_catalog, llama_params
from localspec.machine.cpu_and_ram import read_cpu_cores, read_cpu_name
from localspec.machine.device import HOST, Device
from localspec.machine.ram_speed import RamSpeed, find_ram_speed, read_ram_speed
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import MODEL_DRAFT_MAX, ContextSettings, LoadCommand

CurveKind = Literal["gpu", "metal", "cpu"]  # Selects the typical verify curve.
FloatRange = tuple[float, float]

_EXPERT_MEGABYTES = 0.26
"""How much longer a GPU takes for each matrix of an expert: as if it were so much larger.

A small product leaves most of a GPU idle at its end. Example: experts of gpt-oss have
matrices of 4.4 MB, which are read at 0.94 of the speed of other weights; those of
Qwen3.6 35B-A3B have 0.6 MB, and reach 0.7.
"""
CPU_EXPERTS_SHARE = 0.93
"""The share of the speed of other weights with which a CPU reads experts."""
_CPU_LAYER_MS = 0.05
"""The time of a layer on a CPU beside reading: its threads wait for each other often."""
_EXPERT_LAUNCHES = {"CUDA": 0.35, "SYCL": 0.95}
_OTHER_EXPERT_LAUNCHES = 0.25
"""How much longer a layer with experts takes than another one, beside reading.

With 0.35 it takes 1.35 times as long. It starts a dozen more small kernels. CUDA starts those of a pass at once, as a graph.
SYCL copies the numbers of the chosen experts to the CPU, and waits for them.
"""
_RECURRENT_LAUNCHES = {"CUDA": 0.24}
_OTHER_RECURRENT_LAUNCHES = 0.86
"""How much longer a recurrent layer takes, likewise: it has a convolution and a scan."""
_BESIDE_GPU = 1.5
"""How much longer a CPU takes for layers beside a GPU: its threads sleep meanwhile."""
_VULKAN_BF16_EXPERTS_SHARE = 0.17
"""The share of the speed of other types with which Vulkan reads experts in BF16.

Vulkan has a fast product of a vector and a matrix in BF16, but not for a matrix that is
a chosen expert. A Ryzen AI Max generates 10 tok/s so, and 26 with ROCm.
"""
_FEW_BITS = re.compile("I?Q[123]|TQ")
"""Weight types that cost the most to unpack."""
_FEW_BITS_SHARE = 0.75
"""The share of the reading speed of other types that those reach.

The constants above, and `share` and `layer_ms` of gpus.yaml, are least squares of 290
published runs (`scripts/bench/bench.py published --constants`).
"""
LONG_CONTEXT = 16_384  # Tokens; what has room for less ranks after what has it.
_LONG_CONTEXTS = {"code": 32_768}
TABLE_ERROR = 0.25  # Relative error of a one-token pass estimated from gpus.yaml.
_VARIED_ERROR = 0.05
"""Added for mixtures and hybrids: their kernels differ between builds of llama.cpp."""
CALIBRATED_ERROR = 0.08  # The same if passes were measured on this machine.
ASSUMED_ERROR = 0.5  # The same if the bandwidth is only typical of such computers.
# A measured speed applies to models up to this many times as large, or as small.
_SIZE_CLASS = 4
UNQUANTIZED_TYPES = ("F32", "F16", "BF16")
_CPU_VERIFY_CURVE: Mapping[int, float] = {
    1: 1.0,
    2: 1.2,
    4: 1.6,
    5: 2.1,
    8: 2.8,
    17: 5.5,
}
"""Of a CPU until one is measured; quantised weights have a step from 4 to 5.

At 3 about 1.3, from targets with layers in RAM (MTP, 12 GB card).
"""
_CPU_UNQUANTIZED_VERIFY_CURVE: Mapping[int, float] = {
    1: 1.0,
    2: 1.0,
    4: 1.25,
    8: 1.7,
    17: 2.8,
}
_UNQUANTIZED_VERIFY = 0.13
"""The share of a GPU's verify cost that is left on Macs without unpacking weights."""
_EXPERTS_POWER = 0.75
_EXPERTS_STEP = 0.5
"""Experts of a pass of several tokens cost the power of their number, and this step.

The step is for grouping the tokens. Together: 1.7, 2.1, 2.6 and 3.2 passes at 2, 4, 8
and 16 tokens (gpt-oss-20b on a GB10).
"""
CPU_ATTENTION_SLOWDOWN = 2.3
"""Relative to reading as many bytes of weights (3.0 and 6.9 GB/s)."""
DEVICE_CROSSING_MS = 0.045
"""Copying activations from one device to the next: 30 to 60 µs."""
_REDUCTION_MS = 0.02
"""Adding up what GPUs that share every tensor have computed, once.

27B models ran at 37 tok/s on two RTX 5060 Ti (0.02 ms), 52 on two RTX A5000 with
NVLink (0.02), 34 on two RTX 3060 (0.00) and 30 on two R9700 (0.05).
"""
_REQUEST_BYTES = 5000
"""Sent to another computer for each pass, beside 4 bytes per activation."""
_HOST_MS = 0.8  # The time of a round outside llama.cpp.
_DRAFT_HOST_MS = (
    0.25  # The same of each draft token: a call, and waiting for its logits.
)
_MEASURED_SPEEDUP_ERROR = 0.10
"""Relative error of a speed-up with a measured verify curve."""
_TABLE_SPEEDUP_ERROR = 0.20
"""The same with a typical curve."""
_CPU_SPEEDUP_ERROR = 0.35
"""The same if a CPU computes: their curves differ more."""
_TYPICAL_BLOCK_ROWS = 6  # Rows of a block that are typically worth verifying.
_WORST_SPEEDUP = 0.97  # The engine pauses speculation that does not help.
_WORKLOADS = ("chat", "code", "writing", "documents")
_MEASURED_ERROR = 0.08
"""Of a rate measured with this pair: other texts are accepted otherwise."""
_COPIED_SHARES: Mapping[str, FloatRange] = {
    "chat": (0.0, 0.10),
    "code": (0.05, 0.30),
    "writing": (0.0, 0.05),
    "documents": (0.05, 0.50),
}
"""The share of an answer that repeats earlier text, which lookup can draft."""
_COPY_ACCEPTANCE = 0.85  # Acceptance rate of prompt lookup where the text repeats.
_TEMPERATURE_LOSS = 0.18
"""What temperature 1 takes from a rate: 0.75 became 0.62 (Leviathan et al., T5)."""


class DeviceSpeed(Struct, frozen=True):
    bandwidth: float | None
    """Peak GB/s; None if unknown: then models on this device have no speed estimate."""
    efficiency: float = 0.75  # Share of the bandwidth reached.
    fixed_ms: float = 0.0  # The time of a pass, whatever the model size.
    kind: CurveKind = "gpu"
    layer_ms: float = 0.0  # The time of each layer beside reading.
    bf16_experts: float = 1.0
    """The share of the reading speed that experts in BF16 reach."""
    expert_launches: float = _OTHER_EXPERT_LAUNCHES
    """What a layer with experts takes more, in times of a layer."""
    recurrent_launches: float = _OTHER_RECURRENT_LAUNCHES
    beside_gpu: float = 1.0  # How much longer it takes where a GPU has other layers.
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

    @property
    def reached(self) -> float | None:
        """GB/s at which weights are read; None if that is unknown."""
        if self.bandwidth is None:
            return None
        return self.bandwidth * self.efficiency

    def read_ms(self, n_bytes: float, weight_type: str = "") -> float:
        """Milliseconds to read `n_bytes`, without the fixed time.

        Requires a known bandwidth.
        """
        assert self.bandwidth is not None
        factor = 1.0
        is_measured = self.largest_measured < inf
        if self.kind != "cpu" and not is_measured and _FEW_BITS.match(weight_type):
            factor = _FEW_BITS_SHARE
        return n_bytes / (factor * self.efficiency * self.bandwidth * 1e6)

    def read_experts_ms(self, n_bytes: float, weight_type: str = "") -> float:
        """As `read_ms`, for the weights of experts."""
        ms = self.read_ms(n_bytes, weight_type)
        if weight_type == "BF16":
            ms /= self.bf16_experts
        return ms

    def verify_cost(self, width: float, weight_type: str) -> float:
        """Cost of a pass of `width` tokens, in one-token passes."""
        if self.verify_curve:
            return speedup_model.interpolate_curve(self.verify_curve, width)
        is_quantized = weight_type not in UNQUANTIZED_TYPES
        if self.kind == "cpu":
            curve = _CPU_VERIFY_CURVE
            if not is_quantized:
                curve = _CPU_UNQUANTIZED_VERIFY_CURVE
            return speedup_model.interpolate_curve(curve, width)
        verify = self.verify
        if self.kind == "metal" and not is_quantized:
            verify *= _UNQUANTIZED_VERIFY
        return 1 + verify * (width - 1)


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
        if not device.unified or device.link is not None:
            continue
        spec = gpu_catalog.match_device(device)
        if spec is not None:
            bandwidth_text = f"half of {spec.bandwidth:g} GB/s"
            return replace(
                TYPICAL_CPU_SPEED,
                bandwidth=spec.bandwidth,
                efficiency=0.5,
                basis=f"{bandwidth_text} assumed ({spec.name}), not measured yet",
            )
    return _describe_ram(read_ram_speed(read_cpu_name(), read_cpu_cores().physical))


def named_cpu(cpu_name: str) -> DeviceSpeed:
    """The speed of a CPU that is not here, from its name."""
    return _describe_ram(find_ram_speed(cpu_name))


def _describe_ram(ram: RamSpeed) -> DeviceSpeed:
    basis = (
        f"{ram.bandwidth:g} GB/s assumed ({ram.memory}), "
        "not measured yet (localspec doctor --cpu)"
    )
    return replace(
        TYPICAL_CPU_SPEED,
        bandwidth=ram.bandwidth,
        efficiency=ram.share,
        layer_ms=_CPU_LAYER_MS,
        beside_gpu=_BESIDE_GPU,
        error=ram.error,
        basis=basis,
    )


class HardwareSpeed(Struct, frozen=True):
    """Speeds of all devices of a machine."""

    devices: tuple[Device, ...]  # Devices that layers can be offloaded to.
    nominal_speeds: Mapping[str, DeviceSpeed]  # By device name; the CPU under HOST.
    measured_speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    """Speeds by device and weight type; the type "" applies to types not measured."""
    acceptance: Mapping[tuple[str, ...], Mapping[str, float]] = field(
        default_factory=dict
    )
    """Rates that drafts reached here, by a pair's paths; `greedy`, `usual temperature`."""

    def find_speed(
        self,
        device: str,
        weight_type: str,
        n_bytes: float = 0,
        model_bytes: float = inf,
    ) -> DeviceSpeed:
        """The speed for a model that reads `n_bytes` per token here.

        `model_bytes`: what it reads on all devices. What was measured applies to
        models of the size class of the largest and of the smallest one. Others take
        the table's speed; larger ones at least, smaller ones at most as long as the
        last of the class, so that those of a list are comparable. Example: measured
        with 1 and 2 GB, a speed applies from 0.25 to 8 GB.  A model of 10 GB is read
        with the table's bandwidth, and a fixed time with which 8 GB take as long as
        with the measured speed.
        """
        nominal = self.nominal_speeds.get(device, UNKNOWN_SPEED)
        speed = self.measured_speeds.get((device, weight_type))
        if speed is None:
            speed = self.measured_speeds.get((device, ""))
        if speed is None:
            return nominal

        least = speed.smallest_measured / _SIZE_CLASS
        most = speed.largest_measured * _SIZE_CLASS
        is_small = model_bytes < least
        if is_small:
            limit = least
            basis = f"{nominal.basis} ({speed.basis}, far larger)"
        elif n_bytes > most:
            limit = most
            basis = f"{nominal.basis} ({speed.basis}, far smaller)"
        else:
            return speed

        borrowed = replace(speed, error=ASSUMED_ERROR, measured=False, basis=basis)
        if nominal.bandwidth is None:
            return borrowed
        fixed_ms = speed.fixed_ms + speed.read_ms(limit) - nominal.read_ms(limit)
        if not is_small:
            fixed_ms = max(nominal.fixed_ms, fixed_ms)
            return replace(nominal, fixed_ms=fixed_ms, basis=basis)
        if fixed_ms < nominal.fixed_ms:
            return borrowed
        return replace(nominal, basis=basis)


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
    caveat = ""
    if "bandwidth" in spec.unconfirmed:
        caveat = ", unconfirmed"
    spec = spec.for_backend(device.backend)
    bf16_experts = 1.0
    if device.backend == "Vulkan":
        bf16_experts = _VULKAN_BF16_EXPERTS_SHARE
    return DeviceSpeed(
        bandwidth=spec.bandwidth,
        efficiency=spec.share,
        kind=kind,
        layer_ms=spec.layer_ms,
        bf16_experts=bf16_experts,
        expert_launches=_EXPERT_LAUNCHES.get(device.backend, _OTHER_EXPERT_LAUNCHES),
        recurrent_launches=_RECURRENT_LAUNCHES.get(
            device.backend, _OTHER_RECURRENT_LAUNCHES
        ),
        verify=spec.verify,
        error=spec.error,
        basis=f"{spec.bandwidth:g} GB/s{caveat} ({spec.name})",
    )


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
    n_recurrent: int = 0
    n_with_both: int = 0  # Layers with experts beside an ordinary feed-forward part.

    @property
    def weights(self) -> float:
        return self.dense + self.experts

    def scaled(self, share: float) -> DeviceReads:
        """What a GPU reads that has a share of every tensor of these layers."""
        return replace(
            self,
            dense=share * self.dense,
            experts=share * self.experts,
            kv_cache=share * self.kv_cache,
            attention=share * self.attention,
        )


class PassReads(Struct, frozen=True):
    """What one token of a model reads."""

    shape: ModelShape
    by_device: Mapping[str, DeviceReads]  # Only devices in use, by their name.
    n_crossings: int = 0  # Between devices.
    n_layers: int = 1  # Of the whole model, or of a head's target.
    n_reductions: int = 0
    """How often GPUs that share every tensor add up their results.

    They compute at the same time; without such, devices compute one after the other.
    """

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
    expert_share = shape.n_expert_used / max(1, shape.n_expert)
    expert_factor = expert_read_factor(shape)
    states = 8 * (shape.n_embd_r + shape.n_embd_s)
    n_crossings = 0
    homes = {placed.output_backend}
    for il in shape.own_layers:
        layer = shape.layers[il]
        home = placed.layer_backends[il]
        homes.add(home)
        part = reads[home]
        part.n_layers += 1
        if layer.is_recurrent:
            part.n_recurrent += 1
        part.dense += layer.weights
        if layer.experts:
            expert_home = placed.expert_backends[il]
            factor = expert_factor
            if expert_home == placed.cpu_backend:
                factor = 1 / CPU_EXPERTS_SHARE
            reads[expert_home].experts += layer.experts * expert_share * factor
            reads[expert_home].n_with_experts += 1
            if shape.traits.has_dense_beside_experts:
                part.n_with_both += 1
            if expert_home != home:
                n_crossings += 2  # There and back.
        cache_bytes = 0.0
        if layer.has_kv:
            cache_bytes = _kv_read_bytes(shape, layer, settings, context)
        state_bytes = 0
        if layer.is_recurrent:
            state_bytes = states
        part.kv_cache += cache_bytes + state_bytes
        part.attention += cache_bytes * layer.queries_per_kv + state_bytes
    n_crossings += len(homes) - 1

    # The output matrix; a head that has none reads its target's.
    output = reads[placed.output_backend]
    if shape.has_target_weights:
        has_own_output = shape.has_mtp_output
    else:
        has_own_output = shape.output_matrix > 0
        output.dense += shape.output_reads
    n_layers = shape.n_layer
    if target is not None:
        n_layers = target.n_layer
        if not has_own_output:
            output.dense += target.output_matrix

    n_reductions = _share_tensors(reads, placed)
    by_device = {}
    for name, part in zip(placed.backend_names, reads, strict=True):
        if part.weights:
            by_device[name] = part
    return PassReads(
        shape,
        by_device,
        n_crossings=n_crossings,
        n_layers=n_layers,
        n_reductions=n_reductions,
    )


def _share_tensors(reads: list[DeviceReads], placed: LayerPlacement) -> int:
    """Gives each GPU its share of what the first one reads, if tensors are split.

    Returns how often the GPUs add up their results for a token.
    """
    if not placed.tensor_shares:
        return 0
    whole = reads[0]
    for i, share in enumerate(placed.tensor_shares):
        reads[i] = whole.scaled(share)
    return 2 * whole.n_layers  # After attention, and after the rest.


def expert_read_factor(shape: ModelShape) -> float:
    """The time in which a GPU reads experts, relative to other weights."""
    if not shape.expert_matrix_bytes:
        return 1.0
    return 1 + _EXPERT_MEGABYTES * 1e6 / shape.expert_matrix_bytes


def _kv_read_bytes(
    shape: ModelShape, layer: LayerShape, settings: ContextSettings, context: int
) -> float:
    k_type, v_type = llama_params.KV_TYPES[settings.kv_type]
    row_bytes = _row_bytes(layer.n_embd_head_k, k_type)
    if shape.is_mla:
        row_bytes *= 2  # The values are in the same rows, which are read once more.
    else:
        row_bytes += _row_bytes(layer.n_embd_head_v, v_type)
    n_cells = context
    if layer.is_swa:
        n_cells = min(context, shape.n_swa)
    return layer.n_head_kv * n_cells * row_bytes


def _row_bytes(width: int, ggml_type: int) -> float:
    """Also for a part of a block: this is an average."""
    type_ = GGML_TYPES[ggml_type]
    return width * type_.block_bytes / type_.block_size


def find_speeds(reads: PassReads, hardware: HardwareSpeed) -> dict[str, DeviceSpeed]:
    """Of the devices that a pass uses."""
    model_bytes = reads.weights
    if reads.shape.head_kind:
        model_bytes = inf  # It is a part of its target.
    speeds = {}
    for name, part in reads.by_device.items():
        speeds[name] = hardware.find_speed(
            name,
            reads.shape.weight_type,
            n_bytes=part.weights,
            model_bytes=model_bytes,
        )
    return speeds


def estimate_ms(reads: PassReads, hardware: HardwareSpeed, width: int = 1) -> float:
    """Milliseconds of a pass of `width` tokens. Requires known bandwidths."""
    speeds = find_speeds(reads, hardware)
    by_device = {}
    for name, speed in speeds.items():
        by_device[name] = device_ms(reads, name, speed, width)
    ms = sum(by_device.values())
    if reads.n_reductions:
        in_ram = by_device.pop(HOST, 0.0)
        ms = in_ram + max(by_device.values()) + _REDUCTION_MS * reads.n_reductions
    ms += DEVICE_CROSSING_MS * reads.n_crossings
    # A round trip to each remote device of the chain, with each token's activations
    # there and back. The width is as that of the pass before; a change sends the graph
    # again.
    for device in hardware.devices:
        link = device.link
        if link is not None and device.name in speeds:
            n_bytes = _REQUEST_BYTES + 2 * 4 * width * reads.shape.n_embd
            ms += link.round_trip_ms + 1e3 * n_bytes / link.bytes_per_second
    return ms


def device_ms(reads: PassReads, device: str, speed: DeviceSpeed, width: int) -> float:
    part = reads.by_device[device]
    weight_type = reads.shape.weight_type
    verify_cost = speed.verify_cost(width, weight_type)

    # The fixed time was measured for whole models, as curves are: a head is small.
    ms = part.n_layers * speed.fixed_ms / max(1, reads.n_layers)
    if speed.verify_curve:
        ms *= verify_cost
    launches = part.n_layers + speed.recurrent_launches * part.n_recurrent
    launches += speed.expert_launches * part.n_with_experts
    launches += part.n_with_both  # Each is two layers, which are added up.
    ms += launches * speed.layer_ms

    ms += speed.read_ms(part.dense, weight_type) * verify_cost
    if speed.kind == "cpu":
        # Attention is bound by compute here, by memory on a GPU.
        ms += CPU_ATTENTION_SLOWDOWN * speed.read_ms(part.attention) * width
    else:
        ms += speed.read_ms(part.kv_cache) * verify_cost

    if part.experts:  # A wider batch uses more of them, each for fewer tokens.
        ratio = reads.experts_used_ratio(width)
        used = ratio**_EXPERTS_POWER
        if width > 1:
            used += _EXPERTS_STEP
        cost = used * speed.verify_cost(width / ratio, weight_type)
        ms += speed.read_experts_ms(part.experts, weight_type) * cost
    if len(reads.by_device) > 1:
        ms *= speed.beside_gpu
    return ms


class UseCase(Struct, frozen=True):
    """The kind of text, the temperature and the context that a speed applies to."""

    workload: str = "chat"
    temperature: float = 0.8
    context: int = 1024  # Tokens in the context while answering.

    @property
    def long_context(self) -> int:
        """Tokens for which there should be room; a program's files take more."""
        return _LONG_CONTEXTS.get(self.workload, LONG_CONTEXT)


class WorkloadSpeed(Struct, frozen=True):
    speedup: FloatRange
    tokens_per_second: FloatRange


class SpeedEstimate(Struct, frozen=True):
    """Ranges in tokens per second; None if unknown: `explanation` says why."""

    plain: FloatRange | None = None
    speculative: FloatRange | None = None
    by_workload: Mapping[str, WorkloadSpeed] = field(default_factory=dict)
    explanation: str = ""
    no_speculation: str = ""
    """Why this target cannot be drafted for at all; `by_workload` is empty then."""
    calibrated: bool = False  # Based on passes measured on this machine.
    costs: SpeculationCosts | None = None
    t1_ms: float | None = None
    reads: tuple[PassReads, PassReads | None] | None = None
    """What the target and the draft read."""


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
        target_of_head = None
        if draft.head_kind:
            target_of_head = target
        draft_reads = count_reads(
            draft,
            load.draft_settings,
            draft_placement,
            context=use.context,
            target=target_of_head,
        )
        known += find_speeds(draft_reads, hardware).items()
    for name, speed in known:
        if speed.bandwidth is None:
            reason = f"{name}: {speed.basis}"
            return SpeedEstimate(explanation=reason, reads=(reads, draft_reads))

    t1 = estimate_ms(reads, hardware)
    error = _mean_error(reads, speeds)
    plain = 1e3 / t1 * (1 - error), 1e3 / t1 * (1 + error)
    costs = _estimate_costs(load, reads, draft_reads, hardware=hardware, t1_ms=t1)
    by_workload: dict[str, WorkloadSpeed] = {}
    no_speculation = ""
    if target.has_recurrent_state and not target.can_rollback:
        no_speculation = "no speculation: its recurrent state cannot be rolled back"
        basis = no_speculation
        expected = plain
    else:
        basis, speedups = _expect_speedups(
            load, draft, hardware=hardware, use=use, costs=costs
        )
        speedup_error = _speedup_error(speeds)
        for name, (low, high) in speedups.items():
            by_workload[name] = _workload_speed(
                t1,
                lowest=low,
                highest=high,
                error=error,
                speedup_error=speedup_error,
            )
        workload = by_workload.get(use.workload, by_workload["chat"])
        expected = workload.tokens_per_second
    sources = ", ".join(f"{name}: {each.basis}" for name, each in speeds.items())
    return SpeedEstimate(
        plain=plain,
        speculative=expected,
        by_workload=by_workload,
        explanation=f"{sources}; {basis}",
        no_speculation=no_speculation,
        calibrated=all(speed.measured for speed in speeds.values()),
        costs=costs,
        t1_ms=t1,
        reads=(reads, draft_reads),
    )


def _mean_error(reads: PassReads, speeds: Mapping[str, DeviceSpeed]) -> float:
    """The relative error of a pass: that of each device, by its share of the time."""
    total_ms = 0.0
    weighted = 0.0
    for name, speed in speeds.items():
        ms = device_ms(reads, name, speed, 1)
        error = speed.error
        is_from_table = not speed.measured and speed.kind != "cpu"
        if is_from_table and (reads.shape.is_moe or reads.shape.has_recurrent_state):
            error += _VARIED_ERROR
        total_ms += ms
        weighted += ms * error
    if not total_ms:
        return 0.0
    return weighted / total_ms


def _speedup_error(speeds: Mapping[str, DeviceSpeed]) -> float:
    if all(speed.measured and speed.verify_curve for speed in speeds.values()):
        return _MEASURED_SPEEDUP_ERROR
    if any(speed.kind == "cpu" for speed in speeds.values()):
        return _CPU_SPEEDUP_ERROR
    return _TABLE_SPEEDUP_ERROR


def _estimate_costs(
    load: LoadCommand,
    target_reads: PassReads,
    draft_reads: PassReads | None,
    hardware: HardwareSpeed,
    *,
    t1_ms: float,
) -> SpeculationCosts:
    """The costs of a round, in one-token passes of the target, which take `t1_ms`."""
    host_ms = _HOST_MS
    draft_ms = 0.0
    max_draft = min(load.draft_max, MODEL_DRAFT_MAX)
    if target_reads.shape.has_recurrent_state:
        max_draft = min(max_draft, load.snapshots)
    widths = range(1, max_draft + 2)
    if draft_reads is not None:
        head_block = draft_reads.shape.head_block
        if head_block:  # One pass for all draft tokens.
            max_draft = min(max_draft, max(1, head_block - 1))
            n_rows = min(max_draft, _TYPICAL_BLOCK_ROWS)
            host_ms += estimate_ms(draft_reads, hardware, n_rows)
        else:
            draft_ms = _DRAFT_HOST_MS + estimate_ms(draft_reads, hardware)
    curve = {}
    for width in widths:
        curve[width] = estimate_ms(target_reads, hardware, width) / t1_ms
    return SpeculationCosts(
        c=draft_ms / t1_ms,
        verify_curve=curve,
        host=host_ms / t1_ms,
        max_draft=max_draft,
    )


class _ExpectedSpeedup(NamedTuple):
    factor: float
    drafted_share: float  # The share of the text that was drafted.


def _expect_speedups(
    load: LoadCommand,
    draft: ModelShape | None,
    hardware: HardwareSpeed,
    use: UseCase,
    costs: SpeculationCosts,
) -> tuple[str, dict[str, tuple[_ExpectedSpeedup, _ExpectedSpeedup]]]:
    """What they are based on; by workload the lowest and the highest."""
    speedups = {}
    if draft is None:
        copied = max(1.0, costs.best_speedup(_COPY_ACCEPTANCE))
        for workload in _WORKLOADS:
            low, high = _COPIED_SHARES[workload]
            speedups[workload] = (
                _speed_up_copies(low, copied),
                _speed_up_copies(high, copied),
            )
        return "typical gains of prompt lookup", speedups
    rates, basis = _find_rates(load, draft, hardware, use)
    drafted_share = float(costs.max_draft > 0)
    for workload, (low, high) in zip(_WORKLOADS, rates, strict=True):
        speedups[workload] = (
            _ExpectedSpeedup(costs.best_speedup(low), drafted_share),
            _ExpectedSpeedup(costs.best_speedup(high), drafted_share),
        )
    return basis, speedups


def _speed_up_copies(share: float, copied: float) -> _ExpectedSpeedup:
    """The speed-up of a text of which a share is a copy, `copied` times as fast.

    Example: 0.3 of it at 2 times the speed takes 0.7 + 0.15 of the time.
    """
    drafted_share = 0.0
    if copied > 1:
        drafted_share = share
    return _ExpectedSpeedup(1 / (1 - share + share / copied), drafted_share)


def _find_rates(
    load: LoadCommand, draft: ModelShape, hardware: HardwareSpeed, use: UseCase
) -> tuple[Sequence[FloatRange], str]:
    """Acceptance rates by workload, and what they are based on."""
    here = hardware.acceptance.get((load.target, load.draft or ""), {})
    factor = 1 - _TEMPERATURE_LOSS * min(max(use.temperature, 0.0), 1.0)
    measured = None
    if use.temperature > 0:
        measured = here.get("usual temperature")
    if measured is None and "greedy" in here:
        measured = here["greedy"] * factor
    if measured is not None:
        lowest = max(0.0, measured - _MEASURED_ERROR)
        highest = min(1.0, measured + _MEASURED_ERROR)
        basis = f"acceptance rate of {measured:.2f} measured with this pair"
        return [(lowest, highest)] * len(_WORKLOADS), basis
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
    lowest: _ExpectedSpeedup,
    highest: _ExpectedSpeedup,
    *,
    error: float,
    speedup_error: float,
) -> WorkloadSpeed:
    """The range of speeds; `error` is the relative one of `t1_ms`.

    Never much slower than plain decoding, as the engine pauses speculation that does
    not help. No faster either if the middle of the speed-up is a loss: then an error
    does not make it a gain.
    """
    low = lowest.factor
    high = highest.factor
    high_share = highest.drafted_share
    if low + high < 2:
        high = min(high, 1.0)
        high_share = 0.0
    low_error = speedup_error * lowest.drafted_share
    high_error = speedup_error * high_share
    least_speedup = max(low * (1 - low_error), _WORST_SPEEDUP)
    most_speedup = max(high * (1 + high_error), 1.0)

    tok_s = 1e3 / t1_ms
    slowest = max(low * (1 - hypot(error, low_error)), (1 - error) * _WORST_SPEEDUP)
    fastest = max(high * (1 + hypot(error, high_error)), 1 + error)
    return WorkloadSpeed(
        speedup=(least_speedup, most_speedup),
        tokens_per_second=(tok_s * slowest, tok_s * fastest),
    )
