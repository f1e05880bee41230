"""Fixtures of the `LLM` tests: one small engine for each model and its options."""

from collections.abc import Callable, Iterator
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
    """Loads a model of the zoo by name, or the demo; the same one again until it is
    closed.
    """

    def load(name: str = "demo", draft: str = "auto", **options: Any) -> LLM:
        key = name, draft, *sorted(options.items())
        if key not in kept or kept[key].closed:
            named = [
                each if each in ("demo", "auto", "none") else zoo[each]
                for each in (name, draft)
            ]
            if name != "demo" and draft == "auto":
                # lookup needs no measuring first
                options = {"spec": "lookup"} | options
            kept[key] = LLM(*named, **({"ctx": 512, "threads": 1} | options))
        return kept[key]

    yield load
    for llm in kept.values():
        llm.stop()
