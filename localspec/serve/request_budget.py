"""What a request may cost: limits for every field, before anything walks or renders it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from localspec.serve.api_error import invalid, prompt_too_long

MAX_VALUES = 1_000_000
"""Of a request: numbers, texts, arrays and objects."""
MAX_DEPTH = 200
"""Arrays and objects within each other. Schemas of programs have some 20."""
MAX_REFERENCES = 5_000
"""`$ref` in a request. Each may stand for as much as the whole schema."""
MAX_BYTES_PER_TOKEN = 512
"""No prompt of more bytes per token of context fits; the engine need not count it."""


def check_values(body: dict[str, Any]) -> None:
    """Raise ApiError for a field that has too many values, or too deep ones."""
    n_values = 0
    n_references = 0
    for field, value in body.items():
        level = [value]
        depth = 0
        while level:
            depth += 1
            n_values += len(level)
            if n_values > MAX_VALUES:
                problem = f"the request has more than {MAX_VALUES:,} values up to here"
                raise invalid(field, problem)
            if depth > MAX_DEPTH:
                raise invalid(field, f"it is nested too deeply: {MAX_DEPTH} at most")
            below: list[Any] = []
            for part in level:
                if isinstance(part, dict):
                    below += part.values()
                    if "$ref" in part:
                        n_references += 1
                elif isinstance(part, list):
                    below += part
            if n_references > MAX_REFERENCES:
                raise invalid(field, f"more than {MAX_REFERENCES:,} $ref are in it")
            level = below


def check_prompt_size(parts: dict[str, Any], n_ctx: int) -> None:
    """Raise ApiError if the texts of a prompt cannot fit the context.

    `parts` has what the engine gets, by the request's fields. The error names the
    largest.
    """
    sizes = {field: count_bytes(part) for field, part in parts.items()}
    total = sum(sizes.values())
    if total > MAX_BYTES_PER_TOKEN * n_ctx:
        largest = max(sizes, key=lambda field: sizes[field])
        raise prompt_too_long(f"{total:,} bytes", n_ctx, largest)


def count_bytes(value: Any) -> int:
    """The bytes of all texts in a value of any type, and four for each token.

    All fields of any Struct count, so that no new one is forgotten.
    """
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, Struct):
        fields = [getattr(value, name) for name in value.__struct_fields__]
        return sum(map(count_bytes, fields))
    if isinstance(value, tuple):
        is_tokens = bool(value) and isinstance(value[0], int)
        return 4 * len(value) if is_tokens else sum(map(count_bytes, value))
    return 0
