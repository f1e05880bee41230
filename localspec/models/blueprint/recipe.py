"""Which type each tensor of a file gets: the recipes by which llama.cpp quantises.

From src/llama-quant.cpp: tensor_allows_quantization, llama_tensor_get_type_impl,
tensor_type_fallback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.models.gguf.tensors import FILE_TYPES, TYPES

Row = tuple[str, tuple[int, ...]]
"""A tensor's name and its dimensions, the row's length first."""

NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
RECIPES = {
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
FILE_NUMBERS = {name: number for number, name in FILE_TYPES.items()}

_ALWAYS_F32 = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ssm_conv1d|shortconv\.conv\.weight|altup|laurel"
    r"|(?<!\.weight)\Z"
)
_NEVER_QUANTISED = "per_layer_model_proj.weight"
_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_VALUES = re.compile(r"attn_(v|qkv|kv_b)\.weight")
_LAYERS_OF_70B = 80
"""Llama's and Qwen2's largest: their values are narrow, and get more bits."""
_LAYER = re.compile(r"blk\.(\d+)\.")


def nearest(quantisation: str) -> str:
    """The recipe for it: the M one for a publisher's own mixture of the same kind (UD-Q4_K_XL).

    Such a file is up to a tenth larger.  Raises ValueError: there is none.
    """
    name = {"MXFP4_MOE": "MXFP4"}.get(quantisation, quantisation)
    found = _MIXTURE.match(name)
    if found and name not in RECIPES:
        name = "Q6_K" if found[1] == "Q6_K" else f"{found[1]}_M"
    if name not in RECIPES:
        raise ValueError(f"there is no recipe for {quantisation}")
    return name


def types(rows: Sequence[Row], quantisation: str, layers: int, experts: int) -> list[int]:
    """The type of each tensor, in the order of the rows.  Raises ValueError: no such recipe."""
    recipe = _Recipe(rows, nearest(quantisation), layers, experts)
    return [NUMBERS[recipe.type(name, shape)] for name, shape in rows]


class _Recipe:
    """Counts the tensors as they come: what a layer gets depends on how many came before."""

    def __init__(self, rows: Sequence[Row], name: str, layers: int, experts: int) -> None:
        self._name, self._layers, self._experts = name, layers, experts
        self._tied = all(row != "output.weight" for row, _ in rows)
        self._values = sum(bool(_VALUES.search(row)) for row, _ in rows)
        self._seen_values = self._seen_down = 0

    def type(self, name: str, shape: tuple[int, ...]) -> str:
        if len(shape) < 2 or _ALWAYS_F32.search(name):
            return "F32"
        if self._name in ("F32", "F16", "BF16"):
            return self._name
        if name == _NEVER_QUANTISED:
            return "BF16"
        wanted = self._wanted(name, shape)
        for _ in range(2):
            if shape[0] % TYPES[NUMBERS[wanted]][1]:
                wanted = _FALLBACK.get(wanted, "F16")
        return wanted

    def _wanted(self, name: str, shape: tuple[int, ...]) -> str:
        usual = RECIPES[self._name]
        # per_layer_token_embd is a matrix like any other: so it is in Gemma 4's files.
        if name == "output.weight" or (self._tied and name == "token_embd.weight"):
            whole = shape[0] % TYPES[NUMBERS[usual]][1] == 0
            return "Q6_K" if whole and usual not in ("Q8_0", "MXFP4") else "Q8_0"
        if self._name == "MXFP4":
            return usual if len(shape) > 2 else "Q8_0"
        if _VALUES.search(name):
            self._seen_values += 1
            return self._of_values(self._seen_values - 1, fused="qkv" in name)
        if "ffn_down" in name:
            self._seen_down += 1
            found = _LAYER.match(name) if self._experts > 1 else None
            return self._of_down(int(found[1]) if found else self._seen_down - 1)
        return "Q5_K" if self._eight("attn_output", name) else self._of_keys(name, usual)

    def _eight(self, part: str, name: str) -> bool:
        return self._experts == 8 and part in name and self._name.startswith("Q4_K")

    def _of_keys(self, name: str, usual: str) -> str:
        return "Q8_0" if self._experts == 8 and "attn_k.weight" in name else usual

    def _of_values(self, i: int, *, fused: bool) -> str:
        if self._experts == 8:
            return "Q8_0"
        if fused:  # as in files made before 2026; now half of them get more bits, half fewer
            return {"Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}.get(self._name, RECIPES[self._name])
        if self._name in ("Q4_K_M", "Q5_K_M") and _more_bits(i, self._values):
            return "Q6_K"
        of_70b = self._layers == _LAYERS_OF_70B and RECIPES[self._name] == "Q4_K"
        return "Q5_K" if of_70b or (self._name == "Q4_K_S" and i < 4) else RECIPES[self._name]

    def _of_down(self, i: int) -> str:
        if self._name in ("Q4_K_M", "Q5_K_M") and _more_bits(i, self._layers):
            return "Q6_K"
        if self._name == "Q4_K_S" and i < self._layers // 8:
            return "Q5_K"
        return RECIPES[self._name]


def _more_bits(i: int, n: int) -> bool:
    """The first and last eighth, and each third layer between them."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
