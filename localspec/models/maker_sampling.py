"""The sampling parameters that a model's makers suggest: in its file, else in the
catalogue.
"""

from __future__ import annotations

from localspec.models.catalog_entries import CatalogModel, MakerSampling
from localspec.models.gguf.header import Header

FROM_FILE = "file"
_FILE_KEYS = {
    "temp": ("temperature", 5.0),
    "top_k": ("top_k", 10**6),
    "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 1.0),
    "penalty_repeat": ("repeat_penalty", 10.0),
    "xtc_probability": ("xtc_probability", 1.0),
    "xtc_threshold": ("xtc_threshold", 1.0),
}
"""The keys general.sampling.* of a GGUF file (llama-arch.cpp) that we have a parameter
for, and the largest value that is believed.
"""
_WHOLE = ("top_k",)


def find(header: Header | None, model: CatalogModel | None) -> MakerSampling | None:
    """None if the makers give no value."""
    values = header.keys if header else {}
    found = tuple(
        (name, float(value))
        for key, (name, limit) in _FILE_KEYS.items()
        if isinstance(value := values.get(f"general.sampling.{key}"), int | float)
        and 0 <= value <= limit
    )
    if found:
        return MakerSampling(FROM_FILE, "the model's file", found)
    return model.sampling if model else None


def parameters(
    sampling: MakerSampling | None, *, thinks: bool | None
) -> dict[str, float]:
    """Values by the name of the parameter.

    `thinks`: None is as the model is used by default.
    """
    if sampling is None:
        return {}
    values = sampling.plain if thinks is False else sampling.thinking or sampling.plain
    return {name: int(value) if name in _WHOLE else value for name, value in values}


def source_title(sampling: MakerSampling, *, thinks: bool | None) -> str:
    """Where a value of `parameters` is from: the model file, or the catalogue of
    makers' values.
    """
    title = "model file" if sampling.id == FROM_FILE else "makers (catalogue)"
    return f"{title}, thinking" if sampling.thinking and thinks is not False else title


def describe(sampling: MakerSampling | None) -> str:
    """One line for people; empty without values."""
    if sampling is None:
        return ""
    parts = [
        ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in values)
        + " when thinking" * (values is sampling.thinking)
        for values in (sampling.thinking, sampling.plain)
        if values
    ]
    source = (
        "model file" if sampling.id == FROM_FILE else f"catalogue: {sampling.source}"
    )
    return f"{'; '.join(parts)} ({source})"
