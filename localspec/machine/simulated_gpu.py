"""GPUs that this computer does not have, for llama.cpp to count buffers on.

A simulated GPU is a ggml device written in ctypes. It has the name and the memory of
the real one, and the rules by which its backend sizes tensors; its operations are the
CPU's. llama.cpp places layers on it and plans its graph as on a real one, so a load
without data gives the real one's compute buffers (tests/fit/test_memory.py). Nothing is
computed.

This file is for the memory probe's child process only. The structs are those of ggml's
internal interface, version 2 (ggml-backend-impl.h). `SimulatedGpus` raises OSError if
the loaded ggml has another version, and a crash ends no more than the child.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_bool,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from typing import Any

from msgspec import Struct

from localspec.machine.ggml import GgmlDeviceProps, GgmlLibrary

_API_VERSION = 2  # GGML_BACKEND_API_VERSION.
_OFFLOAD_MIN_BATCH = 32
"""From this batch size on, a GPU computes with weights in system memory."""

# Where ggml_tensor has its fields, in bytes.
_TENSOR_TYPE = 0
_TENSOR_NE = 16
_TENSOR_OP = 80
_TENSOR_SOURCES = 152
# Where ggml_backend_buffer has its fields.
_BUFFER_GET_BASE = 8
_BUFFER_TYPE = 88
_BUFFER_CONTEXT = 96
_BUFFER_SIZE = 104

_NameFunction = CFUNCTYPE(c_void_p, c_void_p)
_MemoryFunction = CFUNCTYPE(None, c_void_p, POINTER(c_size_t), POINTER(c_size_t))
_KindFunction = CFUNCTYPE(c_int, c_void_p)
_PropsFunction = CFUNCTYPE(None, c_void_p, POINTER(GgmlDeviceProps))
_InitFunction = CFUNCTYPE(c_void_p, c_void_p, c_char_p)
_PointerFunction = CFUNCTYPE(c_void_p, c_void_p)
_TestFunction = CFUNCTYPE(c_bool, c_void_p, c_void_p)
_FlagFunction = CFUNCTYPE(c_bool, c_void_p)
_AllocFunction = CFUNCTYPE(c_void_p, c_void_p, c_size_t)
_SizeFunction = CFUNCTYPE(c_size_t, c_void_p)
_TensorSizeFunction = CFUNCTYPE(c_size_t, c_void_p, c_void_p)
_LookupFunction = CFUNCTYPE(c_void_p, c_void_p, c_char_p)
_IndexFunction = CFUNCTYPE(c_void_p, c_void_p, c_size_t)
_EventFunction = CFUNCTYPE(None, c_void_p, c_void_p)


class _GgmlDevice(ctypes.Structure):
    """ggml_backend_device."""

    _fields_ = [
        ("get_name", _NameFunction),
        ("get_description", _NameFunction),
        ("get_memory", _MemoryFunction),
        ("get_type", _KindFunction),
        ("get_props", _PropsFunction),
        ("init_backend", _InitFunction),
        ("get_buffer_type", _PointerFunction),
        ("get_host_buffer_type", _PointerFunction),
        ("buffer_from_host_ptr", c_void_p),
        ("supports_op", _TestFunction),
        ("supports_buft", _TestFunction),
        ("offload_op", _TestFunction),
        ("event_new", _PointerFunction),
        ("event_free", _EventFunction),
        ("event_synchronize", _EventFunction),
        ("reg", c_void_p),
        ("context", c_void_p),
    ]


class _GgmlBufferType(ctypes.Structure):
    """ggml_backend_buffer_type."""

    _fields_ = [
        ("get_name", _NameFunction),
        ("alloc_buffer", _AllocFunction),
        ("get_alignment", _SizeFunction),
        ("get_max_size", _SizeFunction),
        ("get_alloc_size", _TensorSizeFunction),
        ("is_host", _FlagFunction),
        ("device", c_void_p),
        ("context", c_void_p),
    ]


class _GgmlRegistry(ctypes.Structure):
    """ggml_backend_reg."""

    _fields_ = [
        ("api_version", c_int),
        ("get_name", _NameFunction),
        ("get_device_count", _SizeFunction),
        ("get_device", _IndexFunction),
        ("get_proc_address", _LookupFunction),
        ("context", c_void_p),
    ]


class GpuDescription(Struct, frozen=True):
    """What the probe sends for a GPU that is not here."""

    name: str
    backend: str
    free: int
    total: int


class _BackendRules(Struct, frozen=True):
    """How a backend sizes tensors."""

    alignment: int
    row_padding: int = 0
    """Rows of quantised weights are padded to multiples of it."""
    copies_cache: bool = False
    """Attention keeps f16 copies of a cache in another type behind its result."""
    has_host_buffers: bool = True
    """Weights in RAM are in pinned memory, and not repacked for the CPU."""
    runs_pipelined: bool = True
    """Several such GPUs compute batches at once, with copies of every input."""


_CUDA_RULES = _BackendRules(alignment=128, row_padding=512, copies_cache=True)
_RULES = {
    "Vulkan": _BackendRules(alignment=32),
    "Metal": _BackendRules(alignment=32, has_host_buffers=False, runs_pipelined=False),
}
"""Other backends have CUDA's rules: most share its code."""


class SimulatedGpus:
    """Makes devices, one for each name: a head and its target share theirs."""

    def __init__(self, library: Any) -> None:
        """`library`: the ctypes handle of libllama.

        Raises OSError if its ggml has another interface.
        """
        self.ggml = GgmlLibrary(library)
        devices = self.ggml.devices()
        cpus = [device for device in devices if self.ggml.kind(device) == "cpu"]
        self.cpu = cpus[0]
        registry = self.ggml.backend_dev_backend_reg(self.cpu)
        version = c_int.from_address(registry).value
        if version != _API_VERSION:
            raise OSError(f"ggml's interface has version {version}")
        self.cpu_buffers: int = self.ggml.backend_cpu_buffer_type()
        self.operations: dict[bytes, int] = {}
        for number in range(_N_OPERATIONS):
            self.operations[self.ggml.op_name(number)] = number
        self.device_offset = self._find_device_offset()
        self._made: dict[tuple[str, str], SimulatedGpu] = {}

    def _find_device_offset(self) -> int:
        """Where ggml_backend has its device."""
        backend = self.ggml.backend_cpu_init()
        try:
            for offset in range(8, 30 * 8, 8):
                if c_uint64.from_address(backend + offset).value == self.cpu:
                    return offset
        finally:
            self.ggml.backend_free(backend)
        raise OSError("ggml's backends are unknown")

    def make_devices(self, gpus: Sequence[GpuDescription]) -> Any:
        """llama_model_params.devices, which ends with NULL.

        A device that was made before gets the free memory of its new description.
        """
        addresses = []
        for gpu in gpus:
            key = gpu.name, gpu.backend
            if key not in self._made:
                self._made[key] = SimulatedGpu(self, gpu)
            self._made[key].gpu = gpu
            addresses.append(ctypes.addressof(self._made[key].device))
        return (c_void_p * (len(addresses) + 1))(*addresses, None)


_N_OPERATIONS = 90


class SimulatedGpu:
    """Keeps everything that ggml has pointers to."""

    def __init__(self, gpus: SimulatedGpus, gpu: GpuDescription) -> None:
        self.gpus = gpus
        self.rules = _RULES.get(gpu.backend, _CUDA_RULES)
        self._names = {
            "device": ctypes.create_string_buffer(gpu.name.encode()),
            "host": ctypes.create_string_buffer(f"{gpu.backend}_Host".encode()),
            "registry": ctypes.create_string_buffer(gpu.backend.encode()),
        }
        self.gpu = gpu
        self._events: list[Any] = []
        self._get_aligned_base = _PointerFunction(self._aligned_base)
        self.device = _GgmlDevice()
        self.buffers = self._make_buffer_type(is_host=False)
        self.host_buffers = self._make_buffer_type(is_host=True)
        self.registry = self._make_registry()
        self._fill_device()

    def _return_name(self, which: str) -> Any:
        address = ctypes.addressof(self._names[which])
        return _NameFunction(lambda _: address)

    def _make_registry(self) -> _GgmlRegistry:
        device = ctypes.addressof(self.device)
        return _GgmlRegistry(
            api_version=_API_VERSION,
            get_name=self._return_name("registry"),
            get_device_count=_SizeFunction(lambda _: 1),
            get_device=_IndexFunction(lambda _, __: device),
            get_proc_address=_LookupFunction(lambda _, __: None),
            context=None,
        )

    def _make_buffer_type(self, *, is_host: bool) -> _GgmlBufferType:
        """The type of the GPU's own memory, or of pinned memory of the host."""
        name = self._return_name("device")
        alignment = self.rules.alignment
        allocate = _AllocFunction(self._allocate)
        tensor_bytes = _TensorSizeFunction(self._tensor_bytes)
        if is_host:
            name = self._return_name("host")
            alignment = 32
            allocate = _AllocFunction(self._allocate_host)
            tensor_bytes = _TensorSizeFunction(self._plain_bytes)
        return _GgmlBufferType(
            get_name=name,
            alloc_buffer=allocate,
            get_alignment=_SizeFunction(lambda _: alignment),
            get_max_size=_SizeFunction(),
            get_alloc_size=tensor_bytes,
            is_host=_FlagFunction(lambda _: is_host),
            device=ctypes.addressof(self.device),
            context=None,
        )

    def _fill_device(self) -> None:
        device = self.device
        buffers = ctypes.addressof(self.buffers)
        host = None
        if self.rules.has_host_buffers:
            host = ctypes.addressof(self.host_buffers)
        device.get_name = self._return_name("device")
        device.get_description = self._return_name("device")
        device.get_memory = _MemoryFunction(self._write_memory)
        device.get_type = _KindFunction(lambda _: 1)  # GGML_BACKEND_DEVICE_TYPE_GPU
        device.get_props = _PropsFunction(self._write_props)
        device.init_backend = _InitFunction(self._init_backend)
        device.get_buffer_type = _PointerFunction(lambda _: buffers)
        device.get_host_buffer_type = _PointerFunction(lambda _: host)
        device.supports_op = _TestFunction(self._supports)
        device.supports_buft = _TestFunction(lambda _, buffer: buffer == buffers)
        device.offload_op = _TestFunction(self._offloads)
        if self.rules.runs_pipelined:
            device.event_new = _PointerFunction(self._make_event)
            device.event_free = _EventFunction(lambda _, __: None)
            device.event_synchronize = _EventFunction(lambda _, __: None)
        device.reg = ctypes.addressof(self.registry)

    def _write_memory(self, _: int, free: Any, total: Any) -> None:
        free[0] = self.gpu.free
        total[0] = self.gpu.total

    def _write_props(self, _: int, props: Any) -> None:
        found = props[0]
        found.name = self._names["device"].value
        found.description = self._names["device"].value
        found.memory_free = self.gpu.free
        found.memory_total = self.gpu.total
        found.type = 1
        found.device_id = self._names["device"].value
        capabilities = {
            "async": self.rules.runs_pipelined,
            "host_buffer": self.rules.has_host_buffers,
            "buffer_from_host_ptr": False,
            "events": self.rules.runs_pipelined,
            "mmap_support": True,
        }
        found.caps = (c_bool * 5)(*capabilities.values())

    def _init_backend(self, _: int, __: bytes) -> int:
        backend: int = self.gpus.ggml.backend_cpu_init()
        address = backend + self.gpus.device_offset
        c_uint64.from_address(address).value = ctypes.addressof(self.device)
        return backend

    def _make_event(self, _: int) -> int:
        event = (c_uint64 * 2)(ctypes.addressof(self.device), 0)
        self._events.append(event)
        return ctypes.addressof(event)

    def _supports(self, _: int, tensor: int) -> bool:
        return bool(self.gpus.ggml.backend_dev_supports_op(self.gpus.cpu, tensor))

    def _offloads(self, _: int, tensor: int) -> bool:
        """Whether the GPU computes an operation whose weights are in system memory.

        That pays for a batch of 32 tokens. Where a tensor has the batch size depends on
        its operation.
        """
        operation = c_int.from_address(tensor + _TENSOR_OP).value
        operations = self.gpus.operations
        if operation == operations[b"GET_ROWS"]:
            return False
        if operation == operations[b"MUL_MAT"]:
            batch = c_int64.from_address(tensor + _TENSOR_NE + 8).value
        elif operation in (operations[b"MUL_MAT_ID"], operations[b"ROPE"]):
            batch = c_int64.from_address(tensor + _TENSOR_NE + 16).value
        else:
            batch = self.gpus.ggml.nrows(tensor)
        return bool(batch >= _OFFLOAD_MIN_BATCH)

    def _plain_bytes(self, _: int, tensor: int) -> int:
        return int(self.gpus.ggml.nbytes(tensor))

    def _tensor_bytes(self, _: int, tensor: int) -> int:
        ggml = self.gpus.ggml
        size = int(ggml.nbytes(tensor))
        kind = c_int.from_address(tensor + _TENSOR_TYPE).value
        width = c_int64.from_address(tensor + _TENSOR_NE).value
        padding = self.rules.row_padding
        if padding and width % padding and ggml.is_quantized(kind):
            size += ggml.row_size(kind, padding - width % padding)
        operation = c_int.from_address(tensor + _TENSOR_OP).value
        is_attention = operation == self.gpus.operations[b"FLASH_ATTN_EXT"]
        if is_attention and self.rules.copies_cache:
            for source in (1, 2):  # Keys and values.
                size = self._add_f16_copy(size, tensor, source)
        return size

    def _add_f16_copy(self, size: int, tensor: int, source: int) -> int:
        """The size with an f16 copy of a source behind it, if that is not f16."""
        address = tensor + _TENSOR_SOURCES + 8 * source
        cache = c_uint64.from_address(address).value
        if not cache or c_int.from_address(cache + _TENSOR_TYPE).value == 1:
            return size
        n_elements = 1
        for dimension in range(4):
            at = cache + _TENSOR_NE + 8 * dimension
            n_elements *= c_int64.from_address(at).value
        alignment = self.rules.alignment
        return -(-size // alignment) * alignment + 2 * n_elements

    def _allocate(self, _: int, size: int) -> int | None:
        return self._allocate_as(ctypes.addressof(self.buffers), size)

    def _allocate_host(self, _: int, size: int) -> int | None:
        return self._allocate_as(ctypes.addressof(self.host_buffers), size)

    def _allocate_as(self, buffer_type: int, size: int) -> int | None:
        """Memory of the CPU, aligned as on the GPU: recurrent states are allocated."""
        alignment = self.rules.alignment
        buffer: int | None = self.gpus.ggml.backend_buft_alloc_buffer(
            self.gpus.cpu_buffers, size + alignment
        )
        if not buffer:
            return None
        base = ctypes.cast(self._get_aligned_base, c_void_p).value or 0
        c_uint64.from_address(buffer + _BUFFER_GET_BASE).value = base
        c_uint64.from_address(buffer + _BUFFER_TYPE).value = buffer_type
        c_uint64.from_address(buffer + _BUFFER_SIZE).value = size
        return buffer

    def _aligned_base(self, buffer: int) -> int:
        base = c_uint64.from_address(buffer + _BUFFER_CONTEXT).value
        alignment = self.rules.alignment
        return -(-base // alignment) * alignment
