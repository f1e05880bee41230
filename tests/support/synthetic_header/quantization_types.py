"""The type of each tensor of a quantised file, by llama.cpp's recipes.

From src/llama-quant.cpp: tensor_allows_quantization, llama_tensor_get_type_impl,
tensor_type_fallback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.models.gguf.parser import FILE_TYPES, GGML_TYPES

TensorShape = tuple[str, tuple[int, ...]]
"""A tensor's name and its dimensions, row length first."""

GGML_TYPE_IDS = {name: number for number, (name, _, _) in GGML_TYPES.items()}
_PLAIN = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_0", "Q4_0", "Q4_1", "MXFP4")
_MIXED = {"Q5_K_M": "Q5_K", "Q5_K_S": "Q5_K", "Q4_K_M": "Q4_K", "Q4_K_S": "Q4_K"}
QUANTIZATIONS = {**dict(zip(_PLAIN, _PLAIN, strict=True)), **_MIXED}
"""By name of the quantisation, the type of most tensors."""
_MIXTURE = re.compile(r"(?:UD-)?(Q[456]_K)_(?:M|L|XL)\Z")
FILE_TYPE_IDS = {name: number for number, name in FILE_TYPES.items()}

_ALWAYS_F32 = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ssm_conv1d|shortconv\.conv\.weight|altup|laurel"
    r"|(?<!\.weight)\Z"
)
_NEVER_QUANTIZED = "per_layer_model_proj.weight"
_FALLBACK_TYPES = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_VALUE_TENSORS = re.compile(r"attn_(v|qkv|kv_b)\.weight")
_LAYERS_OF_70B = 80
"""Llama's and Qwen2's largest: their values are narrow, and get more bits."""
_LAYER_NUMBER = re.compile(r"blk\.(\d+)\.")


def closest_recipe(quantization: str) -> str:
    """The recipe of a quantisation; for a publisher's own mixture (UD-Q4_K_XL), the M recipe.

    Files with such a mixture are up to a tenth larger.  Raises ValueError if no recipe is close.
    """
    name = {"MXFP4_MOE": "MXFP4"}.get(quantization, quantization)
    mixture = _MIXTURE.match(name)
    if mixture and name not in QUANTIZATIONS:
        name = "Q6_K" if mixture[1] == "Q6_K" else f"{mixture[1]}_M"
    if name not in QUANTIZATIONS:
        raise ValueError(f"there is no recipe for {quantization}")
    return name


def choose_types(
    tensor_shapes: Sequence[TensorShape], quantization: str, layers: int, experts: int
) -> list[int]:
    """The type of each tensor, in order.  Raises ValueError for an unknown quantisation."""
    recipe = closest_recipe(quantization)
    state = _QuantizationState(tensor_shapes, recipe, layers, experts)
    return [GGML_TYPE_IDS[state.choose_type(name, shape)] for name, shape in tensor_shapes]


class _QuantizationState:
    """Chooses types in file order: a tensor's type depends on how many of its kind came before."""

    def __init__(
        self, tensor_shapes: Sequence[TensorShape], recipe: str, layers: int, experts: int
    ) -> None:
        self._recipe, self._layers, self._experts = recipe, layers, experts
        self._is_tied = all(name != "output.weight" for name, _ in tensor_shapes)
        self._n_value_tensors = sum(bool(_VALUE_TENSORS.search(name)) for name, _ in tensor_shapes)
        self._n_value_tensors_seen = self._n_down_tensors_seen = 0

    def choose_type(self, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) < 2 or _ALWAYS_F32.search(name):
            return "F32"
        if self._recipe in ("F32", "F16", "BF16"):
            return self._recipe
        if name == _NEVER_QUANTIZED:
            return "BF16"
        type_ = self._preferred_type(name, shape)
        for _ in range(2):
            if shape[0] % GGML_TYPES[GGML_TYPE_IDS[type_]][1]:
                type_ = _FALLBACK_TYPES.get(type_, "F16")
        return type_

    def _preferred_type(self, name: str, shape: tuple[int, ...]) -> str:
        main_type = QUANTIZATIONS[self._recipe]
        # As in Gemma 4's files, per_layer_token_embd is treated as any other matrix.
        if name == "output.weight" or (self._is_tied and name == "token_embd.weight"):
            fits_blocks = shape[0] % GGML_TYPES[GGML_TYPE_IDS[main_type]][1] == 0
            return "Q6_K" if fits_blocks and main_type not in ("Q8_0", "MXFP4") else "Q8_0"
        if self._recipe == "MXFP4":
            return main_type if len(shape) > 2 else "Q8_0"
        if _VALUE_TENSORS.search(name):
            self._n_value_tensors_seen += 1
            return self._type_of_values(self._n_value_tensors_seen - 1, fused="qkv" in name)
        if "ffn_down" in name:
            self._n_down_tensors_seen += 1
            layer = _LAYER_NUMBER.match(name) if self._experts > 1 else None
            return self._type_of_down(int(layer[1]) if layer else self._n_down_tensors_seen - 1)
        if self._experts == 8 and "attn_output" in name and self._recipe.startswith("Q4_K"):
            return "Q5_K"
        return "Q8_0" if self._experts == 8 and "attn_k.weight" in name else main_type

    def _type_of_values(self, i: int, *, fused: bool) -> str:
        if self._experts == 8:
            return "Q8_0"
        main_type = QUANTIZATIONS[self._recipe]
        if fused:  # as in files made before 2026; newer ones mix more and fewer bits
            return {"Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}.get(self._recipe, main_type)
        if self._recipe in ("Q4_K_M", "Q5_K_M") and _use_more_bits(i, self._n_value_tensors):
            return "Q6_K"
        is_70b = self._layers == _LAYERS_OF_70B and main_type == "Q4_K"
        return "Q5_K" if is_70b or (self._recipe == "Q4_K_S" and i < 4) else main_type

    def _type_of_down(self, i: int) -> str:
        if self._recipe in ("Q4_K_M", "Q5_K_M") and _use_more_bits(i, self._layers):
            return "Q6_K"
        if self._recipe == "Q4_K_S" and i < self._layers // 8:
            return "Q5_K"
        return QUANTIZATIONS[self._recipe]


def _use_more_bits(i: int, n: int) -> bool:
    """True for the first and last eighth of the layers, and every third layer between them."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
