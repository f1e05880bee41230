"""The sampling parameters that a model's makers suggest, there or in the catalogue."""

from __future__ import annotations

from typing import NamedTuple

from localspec.models.catalog_entries import CatalogModel, MakerSampling
from localspec.models.gguf.header import Header

FROM_FILE = "file"
"""The id of the values of a GGUF file."""


class _FileKey(NamedTuple):
    """A key general.sampling.* of a GGUF file (llama-arch.cpp)."""

    key: str
    parameter: str  # Its name here.
    largest: float  # A larger value is not believed.


_FILE_KEYS = (
    _FileKey("temp", "temperature", largest=5.0),
    _FileKey("top_k", "top_k", largest=10**6),
    _FileKey("top_p", "top_p", largest=1.0),
    _FileKey("min_p", "min_p", largest=1.0),
    _FileKey("penalty_repeat", "repeat_penalty", largest=10.0),
    _FileKey("xtc_probability", "xtc_probability", largest=1.0),
    _FileKey("xtc_threshold", "xtc_threshold", largest=1.0),
)
_WHOLE_NUMBERS = ("top_k",)


def find(header: Header | None, model: CatalogModel | None) -> MakerSampling | None:
    """None if the makers give no value."""
    from_file = _read_header(header) if header else ()
    if from_file:
        return MakerSampling(FROM_FILE, "the model's file", from_file)
    return model.sampling if model else None


def _read_header(header: Header) -> tuple[tuple[str, float], ...]:
    values = []
    for row in _FILE_KEYS:
        value = header.keys.get(f"general.sampling.{row.key}")
        if isinstance(value, int | float) and 0 <= value <= row.largest:
            values.append((row.parameter, float(value)))
    return tuple(values)


def parameters(
    sampling: MakerSampling | None, *, thinks: bool | None
) -> dict[str, float]:
    """Values by the name of the parameter.

    `thinks` is None if the model is used as it is by default.
    """
    if sampling is None:
        return {}
    values = sampling.plain
    if _is_for_thinking(sampling, thinks):
        values = sampling.thinking
    found: dict[str, float] = dict(values)
    for name in _WHOLE_NUMBERS:
        if name in found:
            found[name] = int(found[name])
    return found


def source_title(sampling: MakerSampling, *, thinks: bool | None) -> str:
    """Where a value of `parameters` is from: the model file, or the catalogue."""
    title = "model file" if sampling.id == FROM_FILE else "makers (catalogue)"
    if _is_for_thinking(sampling, thinks):
        return f"{title}, thinking"
    return title


def describe(sampling: MakerSampling | None) -> str:
    """One line for people; empty without values."""
    if sampling is None:
        return ""
    parts = []
    if sampling.thinking:
        parts.append(f"{_list_values(sampling.thinking)} when thinking")
    if sampling.plain:
        parts.append(_list_values(sampling.plain))
    source = f"catalogue: {sampling.source}"
    if sampling.id == FROM_FILE:
        source = "model file"
    return f"{'; '.join(parts)} ({source})"


def _list_values(values: tuple[tuple[str, float], ...]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in values)


def _is_for_thinking(sampling: MakerSampling, thinks: bool | None) -> bool:
    return bool(sampling.thinking) and thinks is not False
