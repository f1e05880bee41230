"""Which type each tensor of a file gets: the recipes by which llama.cpp quantises.

From src/llama-quant.cpp: tensor_allows_quantization, llama_tensor_get_type_impl,
tensor_type_fallback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.models.gguf.tensors import FILE_TYPES, GGML_TYPES

TensorShape = tuple[str, tuple[int, ...]]
"""A tensor's name and its dimensions, the row's length first."""

GGML_TYPE_IDS = {name: number for number, (name, _, _) in GGML_TYPES.items()}
QUANTIZATIONS = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "Q8_0": "Q8_0",
    "Q6_K": "Q6_K",
    "Q5_K_M": "Q5_K",
    "Q5_K_S": "Q5_K",
    "Q4_K_M": "Q4_K",
    "Q4_K_S": "Q4_K",
    "Q5_0": "Q5_0",
    "Q4_0": "Q4_0",
    "MXFP4": "MXFP4",
}
"""Names of quantisations, and the type of most of their tensors."""
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
    """The recipe for it: the M one for a publisher's own mixture of the same kind (UD-Q4_K_XL).

    Such a file is up to a tenth larger.  Raises ValueError: there is none.
    """
    name = {"MXFP4_MOE": "MXFP4"}.get(quantization, quantization)
    found = _MIXTURE.match(name)
    if found and name not in QUANTIZATIONS:
        name = "Q6_K" if found[1] == "Q6_K" else f"{found[1]}_M"
    if name not in QUANTIZATIONS:
        raise ValueError(f"there is no recipe for {quantization}")
    return name


def choose_types(
    tensor_shapes: Sequence[TensorShape], quantization: str, layers: int, experts: int
) -> list[int]:
    """The type of each tensor, in the order of the rows.  Raises ValueError: no such recipe."""
    recipe = _QuantizationState(tensor_shapes, closest_recipe(quantization), layers, experts)
    return [GGML_TYPE_IDS[recipe.choose_type(name, shape)] for name, shape in tensor_shapes]


class _QuantizationState:
    """Counts the tensors as they come: what a layer gets depends on how many came before."""

    def __init__(self, rows: Sequence[TensorShape], name: str, layers: int, experts: int) -> None:
        self._name, self._layers, self._experts = name, layers, experts
        self._is_tied = all(row != "output.weight" for row, _ in rows)
        self._n_value_tensors = sum(bool(_VALUE_TENSORS.search(row)) for row, _ in rows)
        self._n_value_tensors_seen = self._n_down_tensors_seen = 0

    def choose_type(self, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) < 2 or _ALWAYS_F32.search(name):
            return "F32"
        if self._name in ("F32", "F16", "BF16"):
            return self._name
        if name == _NEVER_QUANTIZED:
            return "BF16"
        wanted = self._preferred_type(name, shape)
        for _ in range(2):
            if shape[0] % GGML_TYPES[GGML_TYPE_IDS[wanted]][1]:
                wanted = _FALLBACK_TYPES.get(wanted, "F16")
        return wanted

    def _preferred_type(self, name: str, shape: tuple[int, ...]) -> str:
        usual = QUANTIZATIONS[self._name]
        # per_layer_token_embd is a matrix like any other: so it is in Gemma 4's files.
        if name == "output.weight" or (self._is_tied and name == "token_embd.weight"):
            whole = shape[0] % GGML_TYPES[GGML_TYPE_IDS[usual]][1] == 0
            return "Q6_K" if whole and usual not in ("Q8_0", "MXFP4") else "Q8_0"
        if self._name == "MXFP4":
            return usual if len(shape) > 2 else "Q8_0"
        if _VALUE_TENSORS.search(name):
            self._n_value_tensors_seen += 1
            return self._type_of_values(self._n_value_tensors_seen - 1, fused="qkv" in name)
        if "ffn_down" in name:
            self._n_down_tensors_seen += 1
            found = _LAYER_NUMBER.match(name) if self._experts > 1 else None
            return self._type_of_down(int(found[1]) if found else self._n_down_tensors_seen - 1)
        return (
            "Q5_K"
            if self._is_eight_expert_q4("attn_output", name)
            else self._type_of_keys(name, usual)
        )

    def _is_eight_expert_q4(self, part: str, name: str) -> bool:
        return self._experts == 8 and part in name and self._name.startswith("Q4_K")

    def _type_of_keys(self, name: str, usual: str) -> str:
        return "Q8_0" if self._experts == 8 and "attn_k.weight" in name else usual

    def _type_of_values(self, i: int, *, fused: bool) -> str:
        if self._experts == 8:
            return "Q8_0"
        if fused:  # as in files made before 2026; now half of them get more bits, half fewer
            return {"Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}.get(self._name, QUANTIZATIONS[self._name])
        if self._name in ("Q4_K_M", "Q5_K_M") and _use_more_bits(i, self._n_value_tensors):
            return "Q6_K"
        of_70b = self._layers == _LAYERS_OF_70B and QUANTIZATIONS[self._name] == "Q4_K"
        return "Q5_K" if of_70b or (self._name == "Q4_K_S" and i < 4) else QUANTIZATIONS[self._name]

    def _type_of_down(self, i: int) -> str:
        if self._name in ("Q4_K_M", "Q5_K_M") and _use_more_bits(i, self._layers):
            return "Q6_K"
        if self._name == "Q4_K_S" and i < self._layers // 8:
            return "Q5_K"
        return QUANTIZATIONS[self._name]


def _use_more_bits(i: int, n: int) -> bool:
    """The first and last eighth, and each third layer between them."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
