"""The plan of a pair: its settings, its memory on each device, its speed, and why.

`estimate_plan` needs shapes only, and takes a few milliseconds.  `count_plan` replaces
the estimated compute buffers by llama.cpp's own counts, which needs the headers of the
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from localspec.fit import memory
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.memory import MemoryEstimate
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.shape import ModelShape, refuse_inconsistent
from localspec.fit.speed import (
    LONG_CONTEXT,
    SpeedEstimate,
    UseCase,
    estimate_speed,
)
from localspec.machine import memory_probe
from localspec.machine.device import (
    HOST,
    Device,
    DeviceMemory,
    least_reserve_bytes,
    reserve_bytes,
)
from localspec.machine.memory_probe import ProbeError
from localspec.models.projector_kinds import ROWS_ON_CPU
from localspec.models.projector_shape import ProjectorShape
from localspec.protocol.wire import LoadCommand
from localspec.units import gib


class FitVerdict(StrEnum):
    """Whether something fits into the free memory; the worst verdict comes first."""

    NO = "no"  # Needs more than is free.
    UNKNOWN = "unknown"  # How much is free is unknown.
    TIGHT = "tight"  # Uses what is reserved for other programs.
    FITS = "fits"

    @property
    def rank(self) -> int:
        """A better verdict has a higher rank."""
        return list(FitVerdict).index(self)

    @property
    def can_load(self) -> bool:
        """Whether nothing is known to be missing."""
        return self is not FitVerdict.NO

    @property
    def has_room(self) -> bool:
        """Whether the reserve of one memory stays free, as far as is known.

        Of a pair, `Plan.has_room` tells it: beside a GPU whose free memory is unknown,
        the verdict on the pair is UNKNOWN, although system memory may be TIGHT.
        """
        return self in (FitVerdict.FITS, FitVerdict.UNKNOWN)


_LEAST_LEFT = 0.01  # Of the memory, beside the reserve.
_MIB = 1 << 20
_COMPUTE_SAFETY = 0.05  # Backends allocate a little more than llama.cpp reports.
_BACKEND_RUNTIME_MIB = {"CUDA": 330, "ROCm": 330, "Vulkan": 200, "Metal": 150}
"""Memory of the backend itself.

Added for simulated GPUs only: on a real one it is already in use when llama.cpp reports
free memory.
"""
_ENGINE_PROCESS_BYTES = 160 * _MIB
"""The engine process without the model: Python, llama.cpp, vocabulary."""
_COMPARABLE_SHARE = 0.25
"""Loads of at least this share of the memory say how far an estimate is too low."""


def judge(needed: float, free: int | None, reserve: int) -> FitVerdict:
    """The verdict on one memory, in bytes."""
    if not needed:
        return FitVerdict.FITS
    if free is None:
        return FitVerdict.UNKNOWN
    if needed > free:
        return FitVerdict.NO
    if needed > free - reserve:
        return FitVerdict.TIGHT
    return FitVerdict.FITS


class DeviceFit(Struct, frozen=True):
    """Memory of a pair on one device, in bytes."""

    device: Device
    reserve: int  # Reserved for other programs.
    target: DeviceMemory
    draft: DeviceMemory
    output: int = 0
    projector: int = 0  # Of the target, with the buffer of its largest picture.
    overhead: int = 0  # Memory of the backend, and a safety margin.
    sharing: tuple[DeviceFit, ...] = ()
    """GPUs that allocate in this memory: integrated ones, and Apple's."""
    has_head: bool = False  # The draft is a head.
    is_coarse: bool = False
    """Not counted by llama.cpp: every text says "about" before the figure."""

    @property
    def total(self) -> int:
        """Allocated by this device itself."""
        models = self.target.total + self.draft.total + self.projector
        return models + self.output + self.overhead

    @property
    def needed(self) -> int:
        """Allocated in its memory, with what other devices allocate there."""
        return self.total + sum(each.total for each in self.sharing)

    @property
    def memory_parts(self) -> dict[str, int]:
        """Bytes by what uses them; together `needed`.

        A head is shown whole, as one part; the parts of a draft model are added to the
        target's.  "compute buffers" is the rest: buffers of passes, outputs, the safety
        margin, and in system memory the engine process.
        """
        fits = (self, *self.sharing)
        target = sum((each.target for each in fits), DeviceMemory())
        draft = sum((each.draft for each in fits), DeviceMemory())
        if self.has_head:
            parts = {"target": target.weights, "head": draft.total}
            both = target
        else:
            parts = {"target": target.weights, "draft": draft.weights}
            both = target + draft
        parts["KV"] = both.kv - both.states - both.window
        parts["recurrent states"] = both.states
        parts["window cache"] = both.window
        parts["projector"] = sum(each.projector for each in fits)
        parts["compute buffers"] = self.needed - sum(parts.values())
        return parts

    @property
    def headroom(self) -> int | None:
        """Bytes left above the reserve, negative if they are missing.

        None if the free memory is unknown.
        """
        if self.device.free is None:
            return None
        return self.device.free - self.reserve - self.needed

    @property
    def missing(self) -> int:
        """Bytes beyond the free memory."""
        if self.device.free is None:
            return 0
        return max(0, self.needed - self.device.free)

    @property
    def verdict(self) -> FitVerdict:
        return judge(self.needed, self.device.free, self.reserve)

    @property
    def title(self) -> str:
        """The device in a sentence."""
        if self.device.kind == "cpu":
            return "this computer's memory"
        return self.device.description or self.device.name

    @property
    def needed_text(self) -> str:
        """Such as "about 5.2 GB of NVIDIA RTX 3090"."""
        about = "about " if self.is_coarse else ""
        return f"{about}{gib(self.needed)} of {self.title}"


class ProjectorFit(Struct, frozen=True):
    """Where a projector is loaded beside the models of a plan, and what it takes there."""

    device: str
    """The name of a GPU, or HOST; empty if no memory has room for it."""
    title: str = ""  # The device in a sentence.
    weights: int = 0
    compute: int = 0  # The buffer of the largest picture.
    decoding: int = 0  # In RAM, while a picture is read.
    rows: int = 0  # The most that a picture becomes; 0 if that is not known.
    max_rows: int | None = None  # What limits them; None: the device.
    is_coarse: bool = False

    @property
    def needed(self) -> int:
        """On its device."""
        return self.weights + self.compute

    @property
    def on_gpu(self) -> bool:
        return self.device not in ("", HOST)


class Plan(Struct, frozen=True):
    """What loading a pair with these settings takes, and how fast it then is."""

    load: LoadCommand
    device_fits: tuple[DeviceFit, ...]  # Devices that layers can be offloaded to.
    host: DeviceFit  # System memory.
    memory: MemoryEstimate
    speed: SpeedEstimate
    n_ctx_train: int = 0
    long_context: int = LONG_CONTEXT  # Tokens that its use should have room for.
    chosen: str = ""  # The settings, such as "context 8,192 tokens, experts in RAM".
    shortage: str = ""
    """Why they are not the default ones: what those need.  Empty if those fit."""
    exact_note: str = ""  # What exact mode does, if it was asked for.
    skipped_draft: str = ""  # Which draft, that nobody named, is left out, and why.
    projector: ProjectorFit | None = None  # None: the target has none.

    @property
    def all_fits(self) -> tuple[DeviceFit, ...]:
        return (*self.device_fits, self.host)

    @property
    def projector_bytes(self) -> int:
        """What the projector takes of its device, with the safety margin, as in the bar.

        Its weights alone where no device has room for it.
        """
        found = self.projector
        if found is None:
            return 0
        for each in self.all_fits:
            if each.device.name == found.device:
                return each.projector
        return found.needed

    @property
    def verdict(self) -> FitVerdict:
        """The worst verdict of any device."""
        verdicts = (each.verdict for each in self.all_fits)
        return min(verdicts, key=lambda verdict: verdict.rank)

    @property
    def has_room(self) -> bool:
        """Whether every reserve stays free, as far as is known."""
        return all(each.verdict.has_room for each in self.all_fits)

    @property
    def loses(self) -> bool:
        """Whether the draft is not expected to make it faster.

        It is judged by chats, the default use, so that a pair has one verdict for all
        uses.
        """
        if self.speed.plain is None or self.memory.draft is None:
            return False
        chat = self.speed.by_workload.get("chat")
        return chat is None or chat.speedup[1] <= 1

    @property
    def has_long_context(self) -> bool:
        return self._has_context(LONG_CONTEXT)

    @property
    def has_wanted_context(self) -> bool:
        """Whether there is room for what its use wants: for code, 32,768 tokens."""
        return self._has_context(self.long_context)

    def _has_context(self, n_tokens: int) -> bool:
        """Or for all that the model was trained with."""
        n_ctx = self.load.target_settings.n_ctx or 0
        return n_ctx >= min(n_tokens, self.n_ctx_train or n_tokens)

    @property
    def is_partly_in_ram(self) -> bool:
        """Whether experts or layers are left in RAM beside a GPU."""
        if not self.device_fits:
            return False
        return self.has_layers_in_ram or self.load.target_settings.cpu_moe != 0

    @property
    def has_layers_in_ram(self) -> bool:
        """Whether whole layers are left in RAM beside a GPU, which is slow.

        More layers on the GPU than there are means all, as ALL_LAYERS does, which is
        negative.
        """
        if not self.device_fits:
            return False
        n_layers = len(self.memory.target.placement.layer_backends)  # With the output.
        return 0 <= self.load.target_settings.n_gpu_layers < n_layers

    @property
    def is_safely_whole(self) -> bool:
        """Whether it is whole on the GPUs, and leaves what other programs need there.

        That is less than the reserve of a large card. Example: of a card of 15.7 GiB,
        0.8 are reserved, but 0.5 suffice for other programs: a model that leaves 0.6
        free is tight and safely whole.

        A GPU that shares system memory leaves other programs nothing by leaving layers
        to the CPU: they are in the same memory, whose own reserve stays free. There
        the error of the estimate suffices.
        """
        if not self.device_fits or self.is_partly_in_ram:
            return False
        if not self.host.verdict.has_room:
            return False
        for each in self.device_fits:
            if not each.needed or each.device.free is None:
                continue
            least = least_reserve_bytes(each.device)
            if each.device.unified:
                least = self.error
            if each.device.free - each.needed < least:
                return False
        return True

    @property
    def is_full(self) -> bool:
        """Whether one more small program would not fit.

        What is partly in RAM was made to fill the GPU.
        """
        headroom = self.tightest.headroom
        if headroom is None or self.is_partly_in_ram:
            return False
        total = self.tightest.device.total or 0
        return headroom < _LEAST_LEFT * total

    @property
    def is_too_close(self) -> bool:
        """Whether a count by llama.cpp could change the verdict; it may take a second.

        With remote devices nothing is counted: they serve one process at a time.
        """
        if self.load.target_settings.remote_hosts:
            return False
        for each in self.all_fits:
            if not each.needed or each.headroom is None:
                continue
            if each.verdict is FitVerdict.TIGHT:
                return True
            # Of what fits, the bytes beyond need and reserve; else the missing bytes.
            distance = max(each.headroom, each.missing)
            if distance <= self.error:
                return True
        return False

    @property
    def tightest(self) -> DeviceFit:
        """The device that decides the verdict: of those with the worst, the fullest.

        Where all have room, system memory counts only if there is no other device, or
        if a GPU shares it.  Example: of a GPU that uses 2 GiB of its reserve (tight)
        and system memory that lacks 1 GiB (no), it is system memory.
        """
        used = [each for each in self.all_fits if each.needed]
        decisive = [each for each in used if each.verdict == self.verdict]
        if self.verdict is FitVerdict.FITS:
            gpus = [each for each in decisive if each is not self.host or each.sharing]
            decisive = gpus or decisive
        return min(decisive, key=lambda each: each.headroom or 0, default=self.host)

    @property
    def explanation(self) -> str:
        """One line: the settings and the reason for them.

        Example: "context 4,096 tokens: the usual settings would need about 9.2 GB".
        """
        return f"{self.chosen}: {self._reason}"

    @property
    def _reason(self) -> str:
        for each in self.device_fits:
            if each.verdict is FitVerdict.UNKNOWN:
                return f"free memory of {each.title} is unknown"
        tightest = self.tightest
        if not self.verdict.can_load:
            free = gib(tightest.device.free or 0)
            return f"needs {tightest.needed_text}, which has {free} free"
        if self.shortage:
            return self.shortage
        spare = tightest.headroom or 0
        if spare <= 0:
            return f"fills {tightest.title}"
        about = "about " if tightest.is_coarse else ""
        return f"{about}{gib(spare)} of {tightest.title} stay free"

    @property
    def missing_bytes(self) -> int:
        """Bytes beyond the free memory, over all devices."""
        shared = self.host.sharing
        own = sum(each.missing for each in self.device_fits if each not in shared)
        in_ram = max(self.host.missing, sum(each.missing for each in shared))
        return own + in_ram

    @property
    def total(self) -> int:
        return sum(each.total for each in self.all_fits)

    def without_projector(self) -> Plan:
        """The same plan for the model alone."""
        devices = tuple(replace(each, projector=0) for each in self.device_fits)
        sharing = tuple(each for each in devices if is_in_system_memory(each.device))
        host = replace(self.host, projector=0, sharing=sharing)
        return replace(self, device_fits=devices, host=host, projector=None)

    @property
    def error(self) -> int:
        """Bytes by which the estimate of a device may be off."""
        return self.memory.error


def estimate_plan(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    machine: MachineProfile,
    use: UseCase | None = None,
    *,
    with_speed: bool = True,
) -> Plan:
    """The plan of these settings, in a few milliseconds; in half of them without speed.

    Raises UsageError for an impossible context, ModelFileError for inconsistent
    headers.
    """
    if not load.draft:
        draft = None
    speed = SpeedEstimate()
    with refuse_inconsistent():
        estimate = memory.estimate_pair(load, target, draft, machine.devices)
        if with_speed:
            speed = estimate_speed(
                load,
                target,
                draft,
                hardware=machine.hardware,
                placements=estimate.placements,
                use=use,
            )
    has_head = draft is not None and bool(draft.head_kind)
    device_fits, host = _fit_devices(estimate, machine, has_head=has_head)
    return Plan(
        load=load,
        device_fits=device_fits,
        host=host,
        memory=estimate,
        speed=speed,
        n_ctx_train=target.n_ctx_train,
        long_context=(use or UseCase()).long_context,
    )


def _fit_devices(
    estimate: MemoryEstimate, machine: MachineProfile, *, has_head: bool
) -> tuple[tuple[DeviceFit, ...], DeviceFit]:
    """Of the GPUs, and of system memory."""
    gpus = tuple(
        _fit_device(device, estimate, machine, has_head=has_head)
        for device in machine.devices
    )
    cpu = with_unused_memory(replace(machine.cpu, name=HOST), gpus)
    host = _fit_device(cpu, estimate, machine, has_head=has_head)
    host = replace(
        host,
        output=estimate.output,
        overhead=host.overhead + _ENGINE_PROCESS_BYTES,
        sharing=tuple(each for each in gpus if is_in_system_memory(each.device)),
    )
    return gpus, host


def with_unused_memory(cpu: Device, gpus: Sequence[DeviceFit]) -> Device:
    """The CPU of a simulated Mac, with the memory that its GPU leaves.

    Of 128 GB the GPU may use 107.5. A model that takes 61 GB there, and keeps a table of
    27 GB in RAM, has not the other 20.5 GB for that but 61: the GPU's reserve for other
    programs, 5.4 GB, stays its own.
    """
    for gpu in gpus:
        device = gpu.device
        is_shared = device.unified and device.simulated
        if not is_shared or device.free is None or cpu.free is None:
            continue
        unused = max(0, device.free - gpu.reserve - gpu.needed)
        total = (cpu.total or cpu.free) + unused
        cpu = replace(cpu, free=cpu.free + unused, total=total)
    return cpu


def _fit_device(
    device: Device,
    estimate: MemoryEstimate,
    machine: MachineProfile,
    *,
    has_head: bool,
) -> DeviceFit:
    name = device.name
    used = estimate.of(name)
    draft = DeviceMemory()
    if estimate.draft is not None:
        draft = estimate.draft.of(name)
    overhead = int(_COMPUTE_SAFETY * used.compute)
    if used.total and device.simulated:
        overhead += _MIB * _BACKEND_RUNTIME_MIB.get(device.backend, 0)
    elif used.total:
        overhead = max(overhead, _past_shortfall(name, used.total, machine))
    overhead += estimate.scratch.get(name, 0)
    return DeviceFit(
        device=device,
        reserve=reserve_bytes(device),
        target=estimate.target.of(name),
        draft=draft,
        overhead=overhead,
        has_head=has_head,
        is_coarse=estimate.is_coarse,
    )


def _past_shortfall(name: str, n_bytes: int, machine: MachineProfile) -> int:
    """Bytes by which an estimate of `n_bytes` is too low, judged by past loads.

    The worst of those that are comparable counts.  Example: one of 4 GiB took 4.2,
    which is 5 % more; so an estimate of 8 GiB is 0.4 GiB too low.
    """
    shares = [0.0]
    for load in machine.past_loads:
        predicted = load.predicted.get(name, 0)
        if name in load.used and predicted > _COMPARABLE_SHARE * n_bytes:
            shares.append(load.used[name] / predicted - 1)
    return int(n_bytes * max(shares))


def place_projector(
    plan: Plan,
    shape: ProjectorShape,
    *,
    on_gpu: bool = True,
    max_rows: int | None = None,
) -> Plan:
    """The plan with a projector in the memory that its models leave.

    It is on the first GPU that has room beside what is reserved for other programs, if
    need be with fewer rows for a large picture, else in RAM, where it reads pictures
    slower: layers of the model stay where they are. Example: beside a model that leaves 0.6 GB of a card free, a projector of 0.9
    GB is in RAM. Where RAM has no room either, the model runs without it.
    `on_gpu`: whether it may be on a GPU; `max_rows`: the user's limit for a picture.
    """
    if not plan.verdict.can_load:
        return plan
    for number, device_fit in enumerate(plan.device_fits):
        is_used = device_fit.target.total > 0 and device_fit.device.link is None
        if not on_gpu or not is_used:
            continue
        limits = [max_rows]
        if max_rows is None and shape.kind.most_rows > ROWS_ON_CPU:
            limits.append(ROWS_ON_CPU)
        for limit in limits:
            placed = _put_projector(plan, shape, gpu=number, max_rows=limit)
            has_room = all(each.verdict.has_room for each in placed.all_fits)
            headroom = placed.device_fits[number].headroom
            if has_room and (headroom is None or headroom >= plan.error):
                return placed
        break  # llama.cpp takes no other GPU for it.
    in_ram = _put_projector(plan, shape, gpu=None, max_rows=max_rows)
    if in_ram.verdict.can_load:
        return in_ram
    nowhere = ProjectorFit("", weights=shape.weights, is_coarse=shape.is_coarse)
    return replace(plan, projector=nowhere)


def _put_projector(
    plan: Plan, shape: ProjectorShape, *, gpu: int | None, max_rows: int | None
) -> Plan:
    """With the projector on the GPU of this number, or in RAM."""
    on_gpu = gpu is not None
    n_batch = plan.load.target_settings.n_ubatch
    rows = shape.rows(on_gpu=on_gpu, n_batch=n_batch, limit=max_rows)
    compute = shape.compute_bytes(rows, on_gpu=on_gpu)
    compute += shape.work_bytes(rows, on_gpu=on_gpu)
    decoding = shape.decoding_bytes(rows)
    taken = shape.weights + int((1 + _COMPUTE_SAFETY) * compute)
    devices = list(plan.device_fits)
    host = plan.host
    in_ram = decoding
    fit = host
    if gpu is None:
        in_ram += taken
    else:
        fit = devices[gpu]
        devices[gpu] = replace(fit, projector=taken)
    sharing = tuple(each for each in devices if is_in_system_memory(each.device))
    host = replace(host, projector=in_ram, sharing=sharing)
    projector = ProjectorFit(
        device=fit.device.name,
        title=fit.title,
        weights=shape.weights,
        compute=compute,
        decoding=decoding,
        rows=rows,
        max_rows=max_rows,
        is_coarse=shape.is_coarse,
    )
    return replace(plan, device_fits=tuple(devices), host=host, projector=projector)


def is_in_system_memory(device: Device) -> bool:
    """Whether its memory is this computer's own.  A simulated one brings its own."""
    return device.unified and not device.simulated and device.link is None


def confirm_plan(plan: Plan, pair: PairShapes, machine: MachineProfile) -> Plan:
    """The same settings with llama.cpp's counts.

    Takes about a second the first time, then less than a tenth.  A plan from the
    catalogue, or with remote devices, stays an estimate; if the probe fails, it does
    with a note.
    """
    if pair.headers is None or machine.remote_hosts:
        return plan
    if plan.memory.target.placement.tensor_shares:
        # llama.cpp joins the GPUs to one device, whose buffers it cannot tell apart.
        return plan
    try:
        return count_plan(plan, pair, machine)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(plan, memory=replace(plan.memory, note=note))


def count_plan(plan: Plan, pair: PairShapes, machine: MachineProfile) -> Plan:
    """As `confirm_plan`.

    Raises ProbeError, also if llama.cpp uses other devices than the plan.
    """
    if pair.headers is None:
        raise ProbeError("there is no file")
    target, draft = pair.headers
    estimate = plan.memory
    counted = memory_probe.count_buffers(
        plan.load,
        target,
        draft,
        simulated=[device for device in machine.devices if device.simulated],
        used_by_target={name: part.total for name, part in estimate.target.on.items()},
    )
    exact = memory.replace_counted(estimate, plan.load, pair.shapes, counted)
    if _computing_devices(exact) != _computing_devices(estimate):
        raise ProbeError("llama.cpp uses other devices")
    device_fits, host = _fit_devices(exact, machine, has_head=plan.host.has_head)
    return replace(plan, device_fits=device_fits, host=host, memory=exact)


def _computing_devices(estimate: MemoryEstimate) -> set[str]:
    return {name for name, part in estimate.target.on.items() if part.compute}
