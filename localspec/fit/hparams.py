"""Hyperparameters of a model that memory depends on, read from its GGUF header."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import field
from functools import cached_property

from localspec.lazy_dataclass import dataclass
from localspec.models.gguf.architectures import HYBRID, RECURRENT, ROLLBACK
from localspec.models.gguf.header import Header
from localspec.models.gguf.tensors import TensorInfo

_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")
_SWA_PATTERNS = {
    "gemma2": (2, False), "gemma3": (6, False), "gemma3n": (5, False), "gemma4": (6, False),
    "gpt-oss": (2, False), "cohere2": (4, False), "cohere2moe": (4, True), "afmoe": (4, False),
    "exaone4": (4, False), "exaone-moe": (4, False), "llama4": (4, False), "mellum": (4, False),
    "muse-glimmer": (4, False), "olmo2": (4, False), "plamo3": (8, False), "laguna": (4, True),
    "smallthinker": (4, True), "granite_swa": (0, False), "maple": (0, False), "mimo2": (0, False),
    "spark2_5": (0, False), "step35": (0, False), "dots3note": (0, False), "dflash": (0, False),
}  # fmt: skip
"""Architectures with sliding windows: (n, dense_first).  One layer of every n has full attention,
the first of them or the last.  n is 0 if the file contains the pattern, which always takes
precedence.  Source: llama.cpp, src/models/*.cpp.
"""
_DEFAULT_N_SWA = {"gemma2": 4096, "llama4": 8192, "smallthinker": 4096}


@dataclass(frozen=True, slots=True)
class LayerHparams:
    n_head: int
    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
    is_swa: bool
    """Sliding-window attention."""
    is_recurrent: bool
    has_kv: bool
    """Has a KV cache of its own."""


@dataclass(eq=False)
class ModelHparams:
    header: Header
    load_mtp: bool = False
    """Includes the MTP layers, which llama.cpp does not load by default."""
    layer_tensors: dict[int, dict[str, TensorInfo]] = field(default_factory=dict)
    global_tensors: dict[str, TensorInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tensor in self.header.tensors:
            if match := _BLOCK_TENSOR.match(tensor.name):
                layer = self.layer_tensors.setdefault(int(match[1]), {})
                layer[match[2]] = tensor
            else:
                self.global_tensors[tensor.name] = tensor

    @property
    def arch(self) -> str:
        return self.header.architecture

    def number(self, key: str, default: int = 0) -> int:
        return self.header.hparam(key, default)

    def per_layer(self, key: str, default: int = 0) -> tuple[int, ...]:
        """A key with one value, or one for each layer."""
        value = self.header.keys.get(f"{self.arch}.{key}", default)
        n = self.n_layer_all
        if isinstance(value, tuple):
            numbers = tuple(int(v) for v in value if isinstance(v, int | float))
            return (numbers + (default,) * n)[:n]
        return (int(value) if isinstance(value, int | float) else default,) * n

    @cached_property
    def n_layer_all(self) -> int:
        return self.header.n_layer

    @cached_property
    def n_layer(self) -> int:
        """Without MTP layers."""
        return self.n_layer_all - self.number("nextn_predict_layers")

    @cached_property
    def n_layer_loaded(self) -> int:
        return self.n_layer_all if self.load_mtp else self.n_layer

    @cached_property
    def n_embd(self) -> int:
        return self.header.n_embd

    @cached_property
    def n_vocab(self) -> int:
        for name in ("output.weight", "token_embd.weight"):
            if name in self.global_tensors:
                return self.global_tensors[name].shape[1]
        return self.number("vocab_size")

    @cached_property
    def has_tied_output(self) -> bool:
        """The token embeddings serve as output matrix; an EAGLE-3 head uses its target's."""
        return (
            self.arch != "eagle3"
            and "output.weight" not in self.global_tensors
            and "token_embd.weight" in self.global_tensors
        )

    @cached_property
    def is_recurrent(self) -> bool:
        return self.arch in RECURRENT

    @cached_property
    def has_recurrent_state(self) -> bool:
        return self.is_recurrent or self.arch in HYBRID

    @cached_property
    def can_rollback(self) -> bool:
        return self.arch in ROLLBACK

    @cached_property
    def is_mla(self) -> bool:
        """The KV cache holds one compressed row per token."""
        return self.number("attention.key_length_mla") > 0

    @cached_property
    def n_swa(self) -> int:
        if self.arch not in _SWA_PATTERNS and self.arch not in ("lfm2", "lfm2moe"):
            return 0
        return self.number("attention.sliding_window", _DEFAULT_N_SWA.get(self.arch, 0))

    @cached_property
    def _swa_layers(self) -> tuple[bool, ...]:
        if not self.n_swa:
            return (False,) * self.n_layer_all
        if self.arch.startswith("lfm2"):
            return tuple(n > 0 for n in self.per_layer("attention.head_count_kv"))
        pattern = self.header.keys.get(f"{self.arch}.attention.sliding_window_pattern")
        if isinstance(pattern, tuple):
            flags = tuple(bool(v) for v in pattern)
            return (flags + (False,) * self.n_layer_all)[: self.n_layer_all]
        period, dense_first = _SWA_PATTERNS[self.arch]
        if isinstance(pattern, int):
            period = pattern
        return tuple(
            il < self.n_layer and (period == 0 or il % period != (0 if dense_first else period - 1))
            for il in range(self.n_layer_all)
        )

    @cached_property
    def _recurrent_layers(self) -> tuple[bool, ...]:
        if self.is_recurrent:
            return (True,) * self.n_layer_all
        if self.arch not in HYBRID:
            return (False,) * self.n_layer_all
        return tuple(self._has_recurrent_tensors(il) for il in range(self.n_layer_all))

    def _has_recurrent_tensors(self, il: int) -> bool:
        names = self.layer_tensors.get(il, {})
        return any(name.startswith(("ssm_", "shortconv.")) for name in names)

    @cached_property
    def n_layer_kv_from_start(self) -> int:
        """Layers from this one on reuse the KV cache of earlier layers."""
        if self.arch == "gemma3n":
            return 20
        return self.n_layer_all - self.number("attention.shared_kv_layers")

    def kv_source_layer(self, il: int) -> int:
        """The layer whose KV cache layer `il` reads."""
        if il < self.n_layer_kv_from_start:
            return il
        return self.n_layer_kv_from_start - (2 if self.layers[il].is_swa else 1)

    @cached_property
    def layers(self) -> tuple[LayerHparams, ...]:
        heads = self.per_layer("attention.head_count")
        heads_kv = self.per_layer("attention.head_count_kv", self.header.n_head)
        default = self.n_embd // max(1, self.header.n_head)
        k = self.number("attention.key_length", default)
        v = self.number("attention.value_length", default)
        k_swa = self.number("attention.key_length_swa", k)
        v_swa = self.number("attention.value_length_swa", v)
        layers: list[LayerHparams] = []
        for il in range(self.n_layer_all):
            is_swa, is_recurrent = self._swa_layers[il], self._recurrent_layers[il]
            has_kv = il < self.n_layer_kv_from_start and heads_kv[il] > 0 and not self.is_recurrent
            if self.arch in HYBRID:
                names = self.layer_tensors.get(il, {})
                has_kv = "attn_k.weight" in names or "attn_kv_a_mqa.weight" in names
                has_kv = has_kv or ("attn_qkv.weight" in names and not is_recurrent)
            k_width, v_width = (k_swa, v_swa) if is_swa else (k, v)
            has_kv = has_kv and il < self.n_layer_loaded
            layers.append(
                LayerHparams(
                    heads[il], heads_kv[il], k_width, v_width, is_swa, is_recurrent, has_kv
                )
            )
        return tuple(layers)

    @cached_property
    def n_embd_r(self) -> int:
        """Floats of a convolution state, per layer and sequence."""
        short_conv = self.number("shortconv.l_cache")
        if short_conv:
            return self.n_embd * (short_conv - 1)
        conv = self.number("ssm.conv_kernel")
        channels = self.number("ssm.inner_size")
        channels += 2 * self.number("ssm.group_count") * self.number("ssm.state_size")
        return max(0, conv - 1) * channels

    @cached_property
    def n_embd_s(self) -> int:
        """Floats of a recurrent state, per layer and sequence."""
        return self.number("ssm.state_size") * self.number("ssm.inner_size")


_cache: OrderedDict[tuple[int, bool], ModelHparams] = OrderedDict()
_CACHE_SIZE = 256


def from_header(header: Header, *, load_mtp: bool = False) -> ModelHparams:
    """Cached by identity: the same header is estimated with many settings."""
    hparams = _cache.get((id(header), load_mtp))
    if hparams is None or hparams.header is not header:
        hparams = _cache[id(header), load_mtp] = ModelHparams(header, load_mtp)
        if len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return hparams
