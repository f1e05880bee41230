"""ggml's structs of functions, as ggml-backend-impl.h of the pinned llama.cpp has them."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

from localspec.machine.ggml import Props

API = 2
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
PROPS = CFUNCTYPE(None, c_void_p, POINTER(Props))
NAMED = CFUNCTYPE(c_void_p, c_void_p, c_char_p)


class Interface(ctypes.Structure):
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


class BufferType(ctypes.Structure):
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


class Buffer(ctypes.Structure):
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


class Registry(ctypes.Structure):
    """ggml_backend_reg."""

    _fields_ = [
        ("api_version", c_int),
        ("get_name", NAME),
        ("get_device_count", SIZE),
        ("get_device", NUMBERED),
        ("get_proc_address", NAMED),
        ("context", c_void_p),
    ]


class Tensor(ctypes.Structure):
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
