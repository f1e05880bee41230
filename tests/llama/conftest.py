"""Models of the zoo, opened by name and closed after the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.llama.context import LlamaContext
from localspec.machine.llama_params import ModelRole
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo

OUTPUTS = 6
"""Rows of logits that a pass may give, unless a test says otherwise."""
Open = Callable[..., LlamaContext]


@pytest.fixture
def opened(zoo: Zoo) -> Iterator[Open]:
    with ExitStack() as models:

        def open_(
            name: str, *, outputs: int = OUTPUTS, **settings: Any
        ) -> LlamaContext:
            role = ModelRole(replace(SETTINGS, **settings), outputs, 16)
            return models.enter_context(closing(LlamaContext(zoo[name], role)))

        yield open_
