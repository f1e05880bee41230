"""Fixtures of the `LLM` tests: one small engine for each model and its options."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import LLM
from tests.support.zoo import Zoo

Load = Callable[..., LLM]
LONG = 60_000
"""Max tokens: more than any test waits for."""


@pytest.fixture(scope="session")
def kept() -> Iterator[dict[Any, LLM]]:
    llms: dict[Any, LLM] = {}
    yield llms
    for llm in llms.values():
        llm.close()


@pytest.fixture
def load(zoo: Zoo, kept: dict[Any, LLM]) -> Iterator[Load]:
    """Loads a model of the zoo by name, or the demo.

    It is the same one again until it is closed.
    """

    def find(name: str) -> str | Path:
        if name in ("demo", "auto", "none"):
            return name
        return zoo[name]

    def load(name: str = "demo", draft: str = "auto", **options: Any) -> LLM:
        key = (name, draft, *sorted(options.items()))
        if key not in kept or kept[key].closed:
            given: dict[str, Any] = {"ctx": 512, "threads": 1}
            if name != "demo" and draft == "auto":
                given["spec"] = "lookup"  # It needs no measuring first.
            kept[key] = LLM(find(name), find(draft), **(given | options))
        return kept[key]

    yield load
    for llm in kept.values():
        llm.stop()
