"""What a model's file looks like before it is had, from the numbers that describe the model."""

from __future__ import annotations

import dataclasses

from localspec.models.blueprint import needs, recipe
from localspec.models.blueprint.keys import keys
from localspec.models.blueprint.recipe import RECIPES
from localspec.models.blueprint.rows import FAMILIES, rows
from localspec.models.blueprint.shape import Shape
from localspec.models.blueprint.skeleton import data_size, joined, skeleton, unpadded
from localspec.models.gguf.parser import Value
from localspec.models.gguf.tensors import TYPES, Tensor
from localspec.models.gguf.tokenizer import NONE, Tokenizer
from localspec.models.header import Header

__all__ = ["FAMILIES", "RECIPES", "Shape", "data_size", "header", "joined", "skeleton"]

_ALIGNMENT = 32


def header(shape: Shape, quantisation: str, name: str = "") -> Header:
    """The header of a file of this model, but for its vocabulary.

    Raises ValueError: the architecture or the quantisation is none that can be drawn.
    """
    needs.check(shape)
    table = rows(shape)
    layers = shape.layers + shape.mtp_layers
    types = recipe.types(table, quantisation, layers, shape.experts)
    tensors = tuple(_placed(table, types))
    file_type = recipe.FILE_NUMBERS.get(recipe.nearest(quantisation))
    said: dict[str, Value] = {
        "general.architecture": shape.architecture,
        "general.type": "model",
        "general.name": name,
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "none",
    }
    if file_type is not None:
        said["general.file_type"] = file_type
    return _header(shape, said | keys(shape), tensors, name)


def _header(shape: Shape, said: dict[str, Value], tensors: tuple[Tensor, ...], name: str) -> Header:
    draft = Header(
        version=3,
        architecture=shape.architecture,
        name=name,
        size=0,
        keys=said,
        tensors=tensors,
        tokenizer=Tokenizer(NONE, "none", "", shape.vocab),
        chat_template="",
        split=None,
        header_bytes=0,
        data_offset=0,
    )
    begins = len(skeleton(draft))
    return dataclasses.replace(
        draft,
        size=begins + data_size(draft),
        header_bytes=len(unpadded(draft)),
        data_offset=begins,
    )


def _placed(table: list[recipe.Row], types: list[int]) -> list[Tensor]:
    found: list[Tensor] = []
    offset = 0
    for (name, shape), kind in zip(table, types, strict=True):
        _, block, block_bytes = TYPES[kind]
        tensor = Tensor(name, shape, kind, offset, 0)
        n_bytes = tensor.n_elements // block * block_bytes
        found.append(tensor._replace(n_bytes=n_bytes))
        offset += n_bytes + -n_bytes % _ALIGNMENT
    return found
