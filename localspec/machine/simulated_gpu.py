"""Simulated GPU: a ggml device backed by system memory.

llama.cpp places layers, caches and graphs on it as on a real GPU, because it only queries sizes,
alignment and supported operations.  For child processes only.  The structs are those of
ggml-backend-impl.h; `passes_selftest` checks them against the installed llama.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import closing
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

from localspec.machine.ggml import GgmlDeviceProps, GgmlLibrary
from localspec.machine.llama_params import ModelRole
from localspec.machine.probed_model import ProbedModel
from localspec.protocol.wire import ContextSettings

_F16 = 1
_UNQUANTIZED = (0, _F16)
"""F32 and F16."""
_MAX_OP_NUMBER = 96
"""Above the operations needed here; ggml does not check the range of a number."""
_BACKEND_DEVICE_OFFSETS = range(8, 240, 8)
"""Possible offsets of the device in a ggml_backend, after its functions."""
_EVENT_FUNCTION_OFFSETS = (3, 2)
"""Words before that slot: event_record and event_wait."""


@dataclass(frozen=True, slots=True)
class AllocationRules:
    """How a backend's sizes differ from a tensor's own bytes."""

    alignment: int = 128
    padding: int = 512
    """Rows of quantised weights are padded to a multiple of this many elements."""
    f16_copies: bool = True
    """Attention over a quantised cache keeps f16 copies of it behind its output."""
    pipeline: bool = True
    """Supports pipeline parallelism, with copies of the graph's inputs."""
    host_buffer: bool = True
    """Offers a buffer type of pinned host memory (`get_host_buffer_type`).

    llama.cpp then puts the CPU's weights there and does not repack them.
    """


ALLOCATION_RULES = {
    "Vulkan": AllocationRules(alignment=64, padding=0, f16_copies=False),
    "Metal": AllocationRules(
        alignment=32, padding=0, f16_copies=False, pipeline=False, host_buffer=False
    ),
}
"""Other backends use the rules, and mostly the code, of CUDA."""


@dataclass(frozen=True, slots=True)
class SimulatedGpuSpec:
    name: str
    description: str
    total: int
    free: int
    integrated: bool = False
    rules: AllocationRules = AllocationRules()
    empty: bool = True
    """Holds no data: no allocation fails, and clearing a buffer uses no memory."""


class SimulatedGpu:
    """Its `address` is valid for llama.cpp as long as the object lives."""

    def __init__(self, library: Any, spec: SimulatedGpuSpec) -> None:
        self.spec = spec
        self.used = self.peak = 0
        """Bytes allocated by llama.cpp, now and at most."""
        self._ggml = GgmlLibrary(library)
        self._cpu = next(d for d in self._ggml.devices() if self._ggml.kind(d) == "cpu")
        self._memory = self._ggml.backend_cpu_buffer_type()
        self._ops = _ops(self._ggml)
        self._attention = next(op for op, name in self._ops.items() if name == "FLASH_ATTN_EXT")
        self._nbytes = self._ggml.nbytes
        self._backend_device = _device_slot(self._ggml, self._cpu)
        self._texts = [
            ctypes.create_string_buffer(t.encode())
            for t in (spec.name, spec.description, f"{spec.name}_Host")
        ]
        self._name, self._description, self._host_name = map(ctypes.addressof, self._texts)
        self._events: list[Any] = []
        self._nothing = TWO(lambda _a, _b: None)
        self._freed = FREE(self._free)
        self._based = NAME(self._base)
        self._cleared = CLEAR(lambda _b, _v: None)
        self._free_memory: Callable[[int], None] | None = None
        self._registry = self._make_registry()
        self._type = self._make_buffer_type()
        self._host_type = self._make_host_buffer_type()
        self._device = self._make_device()
        self._type.device = self._host_type.device = self.address

    @property
    def address(self) -> int:
        return ctypes.addressof(self._device)

    @property
    def free(self) -> int:
        return max(0, self.spec.free - self.used)

    def _make_registry(self) -> GgmlRegistry:
        return GgmlRegistry(
            API_VERSION,
            NAME(lambda _: self._name),
            SIZE(lambda _: 1),
            NUMBERED(lambda _r, _i: self.address),
            NAMED(lambda _r, _n: None),
            None,
        )

    def _make_buffer_type(self) -> GgmlBufferType:
        return GgmlBufferType(
            NAME(lambda _: self._name),
            NUMBERED(self._allocate),
            SIZE(lambda _: self.spec.rules.alignment),
            None,
            ALLOC_SIZE(self._size_of),
        )

    def _make_host_buffer_type(self) -> GgmlBufferType:
        """The CPU's own buffers under another name; a driver would pin their memory."""
        return GgmlBufferType(
            NAME(lambda _: self._host_name),
            NUMBERED(self._allocate_host),
            GgmlBufferType.from_address(self._memory).get_alignment,
            None,
            ALLOC_SIZE(),
            IS_HOST(lambda _: True),
        )

    def _make_device(self) -> GgmlDeviceInterface:
        host = ctypes.addressof(self._host_type) if self.spec.rules.host_buffer else None
        device = GgmlDeviceInterface(
            get_name=NAME(lambda _: self._name),
            get_description=NAME(lambda _: self._description),
            get_memory=MEMORY(self._tell_memory),
            get_type=KIND(lambda _: self._kind),
            get_props=PROPS(self._tell_props),
            init_backend=NAMED(self._start),
            get_buffer_type=NAME(lambda _: ctypes.addressof(self._type)),
            get_host_buffer_type=NAME(lambda _: host),
            # The CPU's own function: asked some 20,000 times for a large model.
            supports_op=GgmlDeviceInterface.from_address(self._cpu).supports_op,
            supports_buft=SUPPORTS(lambda _d, kind: kind == ctypes.addressof(self._type)),
            offload_op=SUPPORTS(self._offloads),
            reg=ctypes.addressof(self._registry),
        )
        if self.spec.rules.pipeline:
            device.event_new = NAME(self._event)
            device.event_free = device.event_synchronize = self._nothing
        return device

    @property
    def _kind(self) -> int:
        return 2 if self.spec.integrated else 1

    def _tell_memory(self, _: int, free: Any, total: Any) -> None:
        free[0], total[0] = self.free, self.spec.total

    def _tell_props(self, _: int, told: Any) -> None:
        props = told[0]
        props.name, props.description = (text.value for text in self._texts[:2])
        props.memory_free, props.memory_total = self.free, self.spec.total
        props.type, props.device_id = self._kind, self._texts[0].value
        pipeline = self.spec.rules.pipeline
        props.caps.async_ = props.caps.events = pipeline
        props.caps.host_buffer = self.spec.rules.host_buffer
        props.caps.buffer_from_host_ptr = False
        props.caps.mmap_support = True

    def _start(self, _device: int, _parameters: bytes) -> int:
        """A backend of the CPU's that says it is this device's."""
        backend = int(self._ggml.backend_cpu_init())
        slot = backend + self._backend_device
        c_void_p.from_address(slot).value = self.address
        for words in _EVENT_FUNCTION_OFFSETS:
            at = c_void_p.from_address(slot - 8 * words)
            at.value = ctypes.cast(self._nothing, c_void_p).value
        return backend

    def _offloads(self, _: int, operation: int) -> bool:
        """Whether weights in the computer's memory are worth sending: as CUDA decides."""
        tensor = GgmlTensor.from_address(operation)
        op = self._ops.get(tensor.op, "")
        if op == "GET_ROWS":
            return False
        if op == "MUL_MAT":
            return int(tensor.ne[1]) >= 32
        if op in ("MUL_MAT_ID", "ROPE"):
            return int(tensor.ne[2]) >= 32
        return int(self._ggml.nrows(operation)) >= 32

    def _event(self, _: int) -> int:
        event = (c_void_p * 2)(self.address, None)
        self._events.append(event)
        return ctypes.addressof(event)

    def _allocate(self, _: int, size: int) -> int | None:
        if not self.spec.empty and size > self.free:
            return None
        alignment = self.spec.rules.alignment
        address = self._ggml.backend_buft_alloc_buffer(self._memory, size + alignment)
        if not address:
            return None
        buffer = GgmlBuffer.from_address(address)
        self._free_memory = ctypes.cast(buffer.free_buffer, FREE)
        buffer.free_buffer = ctypes.cast(self._freed, c_void_p).value
        buffer.get_base = ctypes.cast(self._based, c_void_p).value
        if self.spec.empty:
            buffer.clear = ctypes.cast(self._cleared, c_void_p).value
        buffer.buft, buffer.size = ctypes.addressof(self._type), size
        self.used += size
        self.peak = max(self.peak, self.used)
        return int(address)

    def _allocate_host(self, _: int, size: int) -> int | None:
        address = self._ggml.backend_buft_alloc_buffer(self._memory, size)
        if not address:
            return None
        GgmlBuffer.from_address(address).buft = ctypes.addressof(self._host_type)
        return int(address)

    def _free(self, address: int) -> None:
        buffer = GgmlBuffer.from_address(address)
        self.used -= buffer.size
        if self._free_memory is not None:
            self._free_memory(address)

    def _base(self, address: int) -> int:
        """The memory's beginning, at this card's alignment."""
        alignment = self.spec.rules.alignment
        return -(-int(GgmlBuffer.from_address(address).context) // alignment) * alignment

    def _size_of(self, _: int, address: int) -> int:
        """Asked some 10,000 times for a large model: what is plain is done first."""
        tensor = GgmlTensor.from_address(address)
        size = int(self._nbytes(address))
        kind = tensor.type
        if kind in _UNQUANTIZED and tensor.op != self._attention:
            return size
        rules = self.spec.rules
        beyond = tensor.ne[0] % rules.padding if rules.padding else 0
        if beyond and self._ggml.is_quantized(kind):
            size += self._ggml.row_size(kind, rules.padding - beyond)
        if rules.f16_copies and tensor.op == self._attention:
            for source in (tensor.src[1], tensor.src[2]):
                size = _with_copy(size, source, rules.alignment)
        return size


def _with_copy(size: int, source: int | None, alignment: int) -> int:
    """And an f16 copy of a cache that is not f16 already."""
    if not source:
        return size
    tensor = GgmlTensor.from_address(source)
    if tensor.type == _F16:
        return size
    elements = 1
    for n in tensor.ne:
        elements *= n
    return -(-size // alignment) * alignment + 2 * elements


def _ops(ggml: GgmlLibrary) -> dict[int, str]:
    wanted = ("GET_ROWS", "MUL_MAT", "MUL_MAT_ID", "ROPE", "FLASH_ATTN_EXT")
    found: dict[int, str] = {}
    for number in range(_MAX_OP_NUMBER):
        if len(found) == len(wanted):
            break
        name = bytes(ggml.op_name(number)).decode("ascii", "replace")
        if name in wanted:
            found[number] = name
    if len(found) < len(wanted):
        raise LookupError("this ggml's operations have other names")
    return found


def _device_slot(ggml: GgmlLibrary, cpu: int) -> int:
    """Where a ggml_backend keeps its device.  Raises LookupError where it is not found."""
    backend = ggml.backend_cpu_init()
    try:
        for at in _BACKEND_DEVICE_OFFSETS:
            if c_void_p.from_address(backend + at).value == cpu:
                return at
    finally:
        ggml.backend_free(backend)
    raise LookupError("this ggml's backends are laid out differently")


# Structs of ggml-backend-impl.h, as in the pinned llama.cpp.

API_VERSION = 2
"""GGML_BACKEND_API_VERSION."""

NAME = CFUNCTYPE(c_void_p, c_void_p)
SIZE = CFUNCTYPE(c_size_t, c_void_p)
FREE = CFUNCTYPE(None, c_void_p)
TWO = CFUNCTYPE(None, c_void_p, c_void_p)
NUMBERED = CFUNCTYPE(c_void_p, c_void_p, c_size_t)
ALLOC_SIZE = CFUNCTYPE(c_size_t, c_void_p, c_void_p)
IS_HOST = CFUNCTYPE(c_bool, c_void_p)
SUPPORTS = CFUNCTYPE(c_bool, c_void_p, c_void_p)
CLEAR = CFUNCTYPE(None, c_void_p, ctypes.c_uint8)
MEMORY = CFUNCTYPE(None, c_void_p, POINTER(c_size_t), POINTER(c_size_t))
KIND = CFUNCTYPE(c_int, c_void_p)
PROPS = CFUNCTYPE(None, c_void_p, POINTER(GgmlDeviceProps))
NAMED = CFUNCTYPE(c_void_p, c_void_p, c_char_p)


class GgmlDeviceInterface(ctypes.Structure):
    """ggml_backend_device."""

    _fields_ = [
        ("get_name", NAME),
        ("get_description", NAME),
        ("get_memory", MEMORY),
        ("get_type", KIND),
        ("get_props", PROPS),
        ("init_backend", NAMED),
        ("get_buffer_type", NAME),
        ("get_host_buffer_type", NAME),
        ("buffer_from_host_ptr", c_void_p),
        ("supports_op", SUPPORTS),
        ("supports_buft", SUPPORTS),
        ("offload_op", SUPPORTS),
        ("event_new", NAME),
        ("event_free", TWO),
        ("event_synchronize", TWO),
        ("reg", c_void_p),
        ("context", c_void_p),
    ]


class GgmlBufferType(ctypes.Structure):
    """ggml_backend_buffer_type."""

    _fields_ = [
        ("get_name", NAME),
        ("alloc_buffer", NUMBERED),
        ("get_alignment", SIZE),
        ("get_max_size", c_void_p),
        ("get_alloc_size", ALLOC_SIZE),
        ("is_host", IS_HOST),
        ("device", c_void_p),
        ("context", c_void_p),
    ]


class GgmlBuffer(ctypes.Structure):
    """ggml_backend_buffer."""

    _fields_ = [
        ("free_buffer", c_void_p),
        ("get_base", c_void_p),
        ("others", c_void_p * 7),
        ("clear", c_void_p),
        ("reset", c_void_p),
        ("buft", c_void_p),
        ("context", c_void_p),
        ("size", c_size_t),
    ]


class GgmlRegistry(ctypes.Structure):
    """ggml_backend_reg."""

    _fields_ = [
        ("api_version", c_int),
        ("get_name", NAME),
        ("get_device_count", SIZE),
        ("get_device", NUMBERED),
        ("get_proc_address", NAMED),
        ("context", c_void_p),
    ]


class GgmlTensor(ctypes.Structure):
    """The beginning of ggml_tensor."""

    _fields_ = [
        ("type", c_int),
        ("buffer", c_void_p),
        ("ne", c_int64 * 4),
        ("nb", c_size_t * 4),
        ("op", c_int),
        ("op_params", c_int32 * 16),
        ("flags", c_int32),
        ("src", c_void_p * 10),
    ]


_SELFTEST_SETTINGS = ContextSettings(n_ctx=512, n_ubatch=64, n_threads=1)
_SELFTEST_ROLE = ModelRole(_SELFTEST_SETTINGS, n_outputs_max=9, n_rs_seq=0, repack=False)
"""Without repacking: a simulated GPU uses the CPU's plain kernels, which round differently."""
_SELFTEST_VRAM = 1024**3
_SELFTEST_NAME = "PRETEND0"
_SELFTEST_TOKENS = 8


def passes_selftest(c: Any, path: str) -> bool:
    """Whether a simulated GPU has the memory and the logits of the CPU, for the model at `path`."""
    empty = SimulatedGpu(
        c._lib, SimulatedGpuSpec(_SELFTEST_NAME, "", _SELFTEST_VRAM, _SELFTEST_VRAM)
    )
    with closing(ProbedModel(c, path, _SELFTEST_ROLE, devices=[empty.address])) as model:
        expected = model.memory_by_device().of(_SELFTEST_NAME)
    card = SimulatedGpu(
        c._lib, SimulatedGpuSpec(_SELFTEST_NAME, "", _SELFTEST_VRAM, _SELFTEST_VRAM, empty=False)
    )
    with closing(ProbedModel(c, path, _SELFTEST_ROLE, devices=[card.address], data=True)) as model:
        taken = model.memory_by_device().of(_SELFTEST_NAME)
        allocated = card.used
        there = read_last_logits(c, model)
    with closing(ProbedModel(c, path, _SELFTEST_ROLE, devices=[], data=True)) as model:
        here = read_last_logits(c, model)
    fair = all(abs(a - b) <= 0.02 * max(1.0, abs(b)) for a, b in zip(there, here, strict=True))
    return expected == taken and expected.total == allocated > 0 and card.used == 0 and fair


def read_last_logits(c: Any, model: ProbedModel, tokens: int = _SELFTEST_TOKENS) -> list[float]:
    """Logits after a few tokens; empty if llama.cpp cannot decode them."""
    ids = (ctypes.c_int32 * tokens)(*range(1, tokens + 1))
    if c.llama_decode(model.context, c.llama_batch_get_one(ids, tokens)) != 0:
        return []
    n = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model.model))
    return list(c.llama_get_logits(model.context)[:n])
