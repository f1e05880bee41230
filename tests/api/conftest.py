"""Fixtures of the `LLM` tests: small engines, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localspec import LLM
from tests.support.zoo import Zoo

Load = Callable[..., LLM]


@pytest.fixture
def load(zoo: Zoo) -> Iterator[Load]:
    """Loads a model of the zoo by name, or the demo."""
    loaded: list[LLM] = []

    def load(name: str = "demo", draft: str = "auto", **options: Any) -> LLM:
        words = (name, draft)
        named = [word if word in ("demo", "auto", "none") else str(zoo[word]) for word in words]
        if named[0] != "demo" and draft == "auto":
            options = {"spec": "lookup"} | options  # lookup needs no measuring first
        loaded.append(LLM(*named, **({"ctx": 512, "threads": 1} | options)))
        return loaded[-1]

    yield load
    for llm in loaded:
        llm.close()
