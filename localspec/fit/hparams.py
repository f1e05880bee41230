"""What memory depends on in a model's header: widths by layer, windows, states, tensors."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

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
"""Architectures with sliding windows: every n-th layer sees all, the first or the last of them.

From src/models/*.cpp.  A file's own pattern goes before.  0: it must have one.
"""
_DEFAULT_N_SWA = {"gemma2": 4096, "llama4": 8192, "smallthinker": 4096}


@dataclass(frozen=True, slots=True)
class LayerHparams:
    """One layer's widths."""

    n_head: int
    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
    is_swa: bool
    """It sees a sliding window only."""
    is_recurrent: bool
    has_kv: bool
    """It keeps keys and values of its own."""


@dataclass(eq=False)
class ModelHparams:
    """One model."""

    header: Header
    load_mtp: bool = False
    """With the layers that only guess ahead (MTP) loaded too."""
    layer_tensors: dict[int, dict[str, TensorInfo]] = field(default_factory=dict)
    global_tensors: dict[str, TensorInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tensor in self.header.tensors:
            found = _BLOCK_TENSOR.match(tensor.name)
            if found:
                layer = self.layer_tensors.setdefault(int(found[1]), {})
                layer[found[2]] = tensor
            else:
                self.global_tensors[tensor.name] = tensor

    @property
    def arch(self) -> str:
        return self.header.architecture

    def number(self, key: str, default: int = 0) -> int:
        return self.header.hparam(key, default)

    def per_layer(self, key: str, default: int = 0) -> tuple[int, ...]:
        """A key that may have one value for each layer."""
        value = self.header.keys.get(f"{self.arch}.{key}", default)
        n = self.n_layer_all
        if isinstance(value, tuple):
            found = tuple(int(v) for v in value if isinstance(v, int | float))
            return (found + (default,) * n)[:n]
        return (int(value) if isinstance(value, int | float) else default,) * n

    @cached_property
    def n_layer_all(self) -> int:
        return self.header.n_layer

    @cached_property
    def n_layer(self) -> int:
        """Without those that only guess ahead (MTP), which mostly are not loaded."""
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
        """The output is the table of tokens, once more; an EAGLE-3 head's is its target's."""
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
        """The cache holds one compressed row a token, keys and values in one."""
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
            said = tuple(bool(v) for v in pattern)
            return (said + (False,) * self.n_layer_all)[: self.n_layer_all]
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
        """Layers from here on read the keys and values of earlier ones."""
        if self.arch == "gemma3n":
            return 20
        return self.n_layer_all - self.number("attention.shared_kv_layers")

    def kv_source_layer(self, il: int) -> int:
        """The layer whose keys and values layer `il` reads."""
        if il < self.n_layer_kv_from_start:
            return il
        return self.n_layer_kv_from_start - (2 if self.layers[il].is_swa else 1)

    @cached_property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer's weights: layers of one kind differ by their quantisation."""
        return tuple(
            sum(t.n_bytes for t in self.layer_tensors.get(il, {}).values())
            for il in range(self.n_layer_all)
        )

    @cached_property
    def layers(self) -> tuple[LayerHparams, ...]:
        heads = self.per_layer("attention.head_count")
        heads_kv = self.per_layer("attention.head_count_kv", self.header.n_head)
        usual = self.n_embd // max(1, self.header.n_head)
        k, v = (
            self.number("attention.key_length", usual),
            self.number("attention.value_length", usual),
        )
        k_swa = self.number("attention.key_length_swa", k)
        v_swa = self.number("attention.value_length_swa", v)
        own = self.n_layer_kv_from_start
        found: list[LayerHparams] = []
        for il in range(self.n_layer_all):
            window, state = self._swa_layers[il], self._recurrent_layers[il]
            attention = il < own and heads_kv[il] > 0 and not self.is_recurrent
            if self.arch in HYBRID:
                names = self.layer_tensors.get(il, {})
                attention = "attn_k.weight" in names or "attn_kv_a_mqa.weight" in names
                attention = attention or ("attn_qkv.weight" in names and not state)
            keys, values = (k_swa, v_swa) if window else (k, v)
            attention = attention and il < self.n_layer_loaded
            heads_here = heads[il], heads_kv[il]
            found.append(LayerHparams(*heads_here, keys, values, window, state, attention))
        return tuple(found)

    @cached_property
    def n_embd_r(self) -> int:
        """Floats of a convolution's memory, a layer and sequence."""
        short = self.number("shortconv.l_cache")
        if short:
            return self.n_embd * (short - 1)
        conv = self.number("ssm.conv_kernel")
        channels = self.number("ssm.inner_size")
        channels += 2 * self.number("ssm.group_count") * self.number("ssm.state_size")
        return max(0, conv - 1) * channels

    @cached_property
    def n_embd_s(self) -> int:
        """Floats of a recurrent layer's state."""
        return self.number("ssm.state_size") * self.number("ssm.inner_size")


def word_set(text: str) -> frozenset[str]:
    """Words, as a set."""
    return frozenset(text.split())


_cache: OrderedDict[tuple[int, bool], ModelHparams] = OrderedDict()
_CACHE_SIZE = 256


def from_header(header: Header, *, load_mtp: bool = False) -> ModelHparams:
    """Kept, because a header is asked about again and again."""
    found = _cache.get((id(header), load_mtp))
    if found is None or found.header is not header:
        found = _cache[id(header), load_mtp] = ModelHparams(header, load_mtp)
        if len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return found
