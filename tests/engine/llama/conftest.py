"""Models opened by name, closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from localspec.engine.llama.context import LlamaContext
from localspec.machine.llama_params import ModelRole
from tests.engine.llama.opening import OUTPUTS, Open
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo


@pytest.fixture
def opened(zoo: Zoo) -> Iterator[Open]:
    """Opens models by name, and closes them at the end."""
    models: list[LlamaContext] = []

    def open_(
        name: str, *, outputs: int = OUTPUTS, rollback: int = 16, **settings: Any
    ) -> LlamaContext:
        models.append(
            LlamaContext(zoo[name], ModelRole(replace(SETTINGS, **settings), outputs, rollback))
        )
        return models[-1]

    yield open_
    for model in models:
        model.close()
